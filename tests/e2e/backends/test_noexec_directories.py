"""Directories of sandboxes in which no program can run are refused at once, with what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from hermes_exec import ConfigError, SandboxPool
from tests.support.disks import small_disk
from tests.support.nomad_agent import POLICY, Agent, agent
from tests.support.other_user import require_root

pytestmark = [pytest.mark.anyio, pytest.mark.singularity]
Image = Callable[[str], str]


async def test_base_directory_of_apptainer_is_refused(tmp_path: Path, singularity_image: Image) -> None:
    require_root()
    with small_disk(tmp_path / "disk", "noexec") as disk:
        with pytest.raises(
            ConfigError, match=f"have their directories in {disk}: no program .* mounted noexec; choose"
        ):
            async with SandboxPool("singularity", image=singularity_image("busybox"), base_dir=str(disk)):
                pass
        assert list(disk.iterdir()) == []


@pytest.fixture(scope="module")
def noexec_node() -> Iterator[Agent]:
    require_root()
    with agent(noexec=True) as node:
        yield node


@pytest.mark.nomad
@pytest.mark.parametrize(
    ("rights", "told"),
    [
        ('"alloc-node-exec", "read-fs"', "no program can run in the directory of a task, .* mounted noexec"),
        ('"alloc-node-exec"', "below Nomad's data_dir with driver='singularity', must not be mounted noexec"),
    ],
)
async def test_data_directory_of_a_node_is_refused(
    rights: str, told: str, noexec_node: Agent, singularity_image: Image
) -> None:
    options = noexec_node.options(driver="singularity", image=singularity_image("busybox"))
    options["token"] = noexec_node.token_with(POLICY.replace("]", f", {rights}]") + ' node { policy = "read" }')
    with pytest.raises(ConfigError, match=told), anyio.fail_after(30):
        async with SandboxPool("nomad", **options) as pool, pool.slot():
            pass
