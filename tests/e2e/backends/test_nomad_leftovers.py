"""A tenant of a Nomad job leaves nested directories without end: neither the node nor its engine keeps any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from hermes_exec import SandboxPool
from hermes_exec.backends.nomad.cluster import TASK
from tests.support.nomad_agent import Agent
from tests.support.waiting import until

LEVELS = 25_000
"""More than Nomad and Docker may have descriptors, here 20,000."""
NEST = f"import os\nos.chdir('/tmp')\nfor _ in range({LEVELS}):\n    os.mkdir('d')\n    os.chdir('d')"
pytestmark = [pytest.mark.anyio, pytest.mark.nomad, pytest.mark.whole]
Image = Callable[[str], str]


@pytest.fixture(params=["docker", pytest.param("singularity", marks=pytest.mark.singularity)])
def options(request: pytest.FixtureRequest, nomad_agent: Agent) -> dict[str, Any]:
    image: Image = request.getfixturevalue(f"{request.param}_image")
    return nomad_agent.options(driver=request.param, image=image("debian"), max_sandboxes=1)


async def test_nothing_stays_of_a_tree_of_any_depth(
    options: dict[str, Any], nomad_agent: Agent, engine: DockerClient
) -> None:
    async with SandboxPool("nomad", **options, slots_per_sandbox=1) as pool, pool.slot() as slot:
        (allocation,) = nomad_agent.ask("GET", f"job/{slot.sandbox}/allocations")
        made = await slot.run(["python3", "-c", NEST], timeout_s=120)
        assert made.ok, made.stderr
    directory = Path(nomad_agent.directory) / "data" / "alloc" / allocation["ID"]
    names = {"name": f"{TASK}-{allocation['ID']}"}

    def gone() -> bool:
        nomad_agent.ask("PUT", "system/gc")
        return not directory.exists() and not engine.api.containers(all=True, filters=names)

    await until(gone)
