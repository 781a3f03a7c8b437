"""`slot_limits.disk_mb` bounds the files of one slot; its neighbours and its sandbox go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_exec import ConfigError, HostDiskFull, Limits, SandboxDied, SandboxPool, Slot
from hermes_exec.tools import Toolbox
from tests.support.directories import let_others_pass
from tests.support.disks import small_disk
from tests.support.other_user import require_root
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
IN_FILE = "file system of the slot in a file"
IN_MEMORY = "file system of the slot in memory"
FILL = "head -c 100000000 /dev/zero > large"
WRITERS: dict[str, dict[str, object]] = {
    "write_file": {"path": "new", "content": "x" * 300_000},
    "patch": {"path": "file", "old_string": "before", "new_string": "x" * 300_000},
    "terminal": {"command": "head -c 300000 /dev/zero > new"},
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    require_root()
    let_others_pass(tmp_path)
    return tmp_path


def attached_files(base: Path) -> list[str]:
    """The files below a directory that loop devices have."""
    files = [path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    return [file for file in files if file.startswith(f"{base}/")]


async def until_detached(base: Path) -> None:
    await until(lambda: not attached_files(base))


async def check_limit(slot: Slot, neighbour: Slot) -> None:
    """Fill a slot of 20 MiB: each write fails there, and only there."""
    await slot.files.write_text("file", "before\n")
    filled = await slot.run(FILL)
    assert (filled.exit_code, "No space left on device" in filled.stderr) == (1, True)
    assert 15 << 20 < (await slot.files.stat("large")).size <= 20 << 20
    with pytest.raises(OSError, match="no space left"):
        await slot.files.write_bytes("new", bytes(300_000))
    async with Toolbox(slot) as toolbox:
        for name, arguments in WRITERS.items():
            result = await toolbox.call(name, arguments)
            assert not result.ok, name
            assert result.error_kind == "no_space" or name == "terminal", result.content
        await toolbox.check_disk()
    long = await slot.run("seq 500000")
    assert (long.stdout_total_bytes, long.truncated, long.spill_path) == (3_388_895, True, None)
    assert (await slot.run("cat file")).stdout == "before\n"
    assert (await neighbour.run("head -c 10000000 /dev/zero > file && stat -c %s file")).stdout == "10000000\n"
    await slot.run("rm large")
    await slot.files.write_bytes("new", bytes(300_000))


async def test_disk_limit_of_a_host_bounds_one_slot_and_leaves_nothing(base: Path) -> None:
    limits = Limits(disk_mb=20)
    async with SandboxPool(
        "local", base_dir=str(base), slots_per_sandbox=2, max_sandboxes=1, slot_limits=limits
    ) as pool:
        async with pool.slots(2) as (slot, neighbour):
            assert slot.isolation.limits["disk_mb"] == IN_FILE
            await check_limit(slot, neighbour)
            assert len(attached_files(base)) == 2
            slot_id = slot.id
            await slot.run(FILL)
            await slot.reset()
            assert (await slot.run("ls -A . ~ /tmp /var/tmp | grep -v :")).stdout.strip() == ""
            assert slot.id == slot_id
        await until_detached(base)
        assert pool.stats().slots_quarantined == 0
    assert os.listdir(base) == []


async def test_disk_of_a_killed_runner_is_gone(base: Path) -> None:
    async with SandboxPool("local", base_dir=str(base), max_sandboxes=1, slot_limits=Limits(disk_mb=20)) as pool:
        async with pool.slot() as slot:
            await slot.run("head -c 5000000 /dev/zero > file; (sleep 1000 &) >/dev/null 2>&1")
            assert attached_files(base)
            os.kill(int(slot.sandbox.removeprefix("local-")), signal.SIGKILL)
            with pytest.raises(SandboxDied):
                await slot.run("true")
        await until_detached(base)


async def test_host_without_room_for_the_disks_is_not_the_models_doing(base: Path) -> None:
    limits = Limits(disk_mb=500)
    with small_disk(base / "disk") as disk:
        async with (
            SandboxPool("local", base_dir=str(disk), slots_per_sandbox=2, max_sandboxes=1, slot_limits=limits) as pool,
            pool.slots(2) as (slot, neighbour),
            Toolbox(slot) as toolbox,
        ):
            await slot.run("echo before > file")
            await neighbour.run("head -c 100000000 /dev/zero > large; sync large")
            await toolbox.call("write_file", {"path": "new", "content": "x" * 300_000})
            await slot.run("true")
            with pytest.raises(HostDiskFull):
                await toolbox.check_disk()
            await neighbour.check_disk()


@pytest.mark.docker
async def test_disk_limit_bounds_an_own_root(docker_image: Callable[[str], str]) -> None:
    async with SandboxPool(
        "docker",
        image=docker_image("debian"),
        slots_per_sandbox=2,
        max_sandboxes=1,
        slot_limits=Limits(disk_mb=20),
        tmpfs={"/memory": "mode=1777"},
    ) as pool:
        async with pool.slots(2) as (slot, neighbour):
            assert slot.isolation.limits["disk_mb"] == IN_MEMORY
            replaced = await slot.run("rm -rf /var/lib/dpkg && mkdir /var/lib/dpkg && ls /var/lib/dpkg", check=True)
            assert replaced.stdout == ""
            for directory in ("/usr", "/memory", "/tmp", "/root"):
                written = await slot.run(f"head -c 100000000 /dev/zero > {directory}/large; rm {directory}/large")
                assert "No space left" in written.stderr
            await check_limit(slot, neighbour)
        async with pool.slot() as slot:
            assert (await slot.run("ls /var/lib/dpkg | head -n 1")).stdout != ""
            assert (await slot.run("ls -A")).stdout == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slots_per_sandbox": 1}, "exclusive sandbox: set slots_per_sandbox=2 or more"),
        ({"slots_per_sandbox": 4, "limits": {"memory_mb": 80}}, "does not fit into limits.memory_mb=80"),
    ],
)
async def test_disk_limit_that_containers_cannot_hold_is_refused_before_a_start(
    options: dict[str, object], said: str
) -> None:
    slots: dict[str, object] = {"slot_limits": {"disk_mb": 20}, **options}
    with pytest.raises(ConfigError, match=said):
        SandboxPool.from_config({"backend": "docker", "image": "x", **slots})
    SandboxPool.from_config({"backend": "docker", "image": "x", "best_effort_limits": True, **slots})
