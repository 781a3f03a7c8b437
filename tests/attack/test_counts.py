"""What the kernel counts by user over all sandboxes does not stop the calls of a neighbour."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hermes_exec import SandboxPool
from tests.attack.arena import DIRECTORY, PROGRAMS

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


@pytest.fixture
def options(docker_image: Callable[[str], str]) -> dict[str, Any]:
    # As many open files as the container may have: without a limit of the slot.
    return {"image": docker_image("debian"), "ulimits": {"nofile": 4096}, "slots_per_sandbox": 1, "max_sandboxes": 2}


async def test_calls_go_on_while_another_sandbox_has_all_descriptors_under_way(options: dict[str, Any]) -> None:
    async with SandboxPool("docker", **options) as pool, pool.slots(2) as (attacker, neighbour):
        await attacker.files.upload(PROGRAMS, DIRECTORY)
        argv = [
            "python3",
            "-B",
            f"{attacker.workspace}/{DIRECTORY}/resources.py",
            "descriptors_under_way",
            json.dumps({}),
        ]
        process = await attacker.spawn(argv)
        said = b""
        while b"\n" not in said:
            said += await process.stdout.receive()
        assert said == b"ready: ETOOMANYREFS\n"
        for _ in range(3):
            assert (await neighbour.run("echo on", timeout_s=60)).stdout == "on\n"
        assert (await process.kill()).left == 0
