"""Checkpoints of a slot's directories: on this host, and in containers whose slots share a root."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest

from hermes_exec import ConfigError, LaunchError, Limits, SandboxPool, SlotClosed, tools
from hermes_exec.pool.checkpoints import INFO_S
from tests.support.disks import empty, fill, small_disk
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
Image = Callable[[str], str]
Factory = Callable[..., SandboxPool]


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def pool_of(request: pytest.FixtureRequest) -> Factory:
    if request.param == "local":
        return partial(SandboxPool, "local", max_sandboxes=1, slots_per_sandbox=4)
    image = request.getfixturevalue("docker_image")("debian")
    return partial(SandboxPool, "docker", image=image, max_sandboxes=1, slots_per_sandbox=4, slot_root="shared")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    with small_disk(tmp_path / "disk") as path:
        yield path


async def test_checkpoint_names_what_it_holds_and_what_not(pool_of: Factory) -> None:
    async with pool_of() as pool, pool.slot() as slot:
        await slot.run("echo here > here; mknod whiteout c 0 0", check=True)
        checkpoint = await slot.checkpoint(holds="directories")
        assert (checkpoint.holds, checkpoint.copied, checkpoint.workdir) == ("directories", True, slot.workspace)
        (outside,) = [line for line in checkpoint.left_out if line.startswith("files outside of ")]
        assert all(path in outside for path in (slot.workspace, slot.home, slot.tmp))
        assert any(line.endswith("it is a device") and "/whiteout" in line for line in checkpoint.left_out)
        (size,) = await checkpoint.sizes()
        assert size.entries == 1
        assert size.bytes == len("here\n")


async def test_directories_have_to_be_asked_for_where_slots_share_a_root(docker_image: Image) -> None:
    image = docker_image("debian")
    shared = partial(SandboxPool, "docker", image=image, max_sandboxes=1)
    async with shared(slots_per_sandbox=3, slot_root="shared") as pool, pool.slot() as slot:
        for call in (slot.checkpoint(), slot.checkpoint(holds="root"), pool.fork(slot, 2).__aenter__()):
            with pytest.raises(ConfigError, match=r"slot_root='own'.* holds='directories'"):
                await call
        with pytest.raises(ConfigError, match="holds must be None, 'root' or 'directories', not 'all'"):
            await slot.checkpoint(holds="all")  # type: ignore[arg-type]
        assert pool.stats().checkpoints == 0
    async with shared(slots_per_sandbox=2, slot_root="own") as pool, pool.slot() as slot:
        with pytest.raises(ConfigError, match="holds the whole root"):
            await slot.checkpoint(holds="directories")
    async with shared(slots_per_sandbox=1) as pool, pool.slot() as slot:
        with pytest.raises(ConfigError, match="slot_root='own', and slots_per_sandbox to the number") as error:
            await slot.checkpoint(holds="directories")
        assert "directories only" not in str(error.value)


async def test_slots_of_this_host_have_no_root_to_hold() -> None:
    async with SandboxPool("local", slots_per_sandbox=3, max_sandboxes=1) as pool, pool.slot() as slot:
        with pytest.raises(ConfigError, match="slots of backend 'local' have none: use holds='directories'"):
            await slot.checkpoint(holds="root")
        if slot.isolation.level == "namespaces":
            assert (await slot.checkpoint()).holds == "directories"
            async with pool.fork(slot, 2) as forks:
                assert [fork.workspace for fork in forks] == [slot.workspace] * 2
        else:
            with pytest.raises(ConfigError, match="holds='directories'"):
                await slot.checkpoint()


async def test_dropped_directories_free_their_room(pool_of: Factory) -> None:
    async with pool_of() as pool, pool.slot() as slot:
        await slot.run("head -c 30000000 /dev/zero | tr '\\0' x > large", check=True)

        async def free() -> int:
            return int((await slot.run(["stat", "-f", "-c", "%f %S", "."], check=True)).stdout.split()[0])

        checkpoints = [await slot.checkpoint(holds="directories") for _ in range(3)]
        for checkpoint in checkpoints:
            assert [size.bytes for size in await checkpoint.sizes()] == [30_000_000]
        before = await free()
        for checkpoint in checkpoints:
            await checkpoint.drop()
        with anyio.fail_after(INFO_S):
            while await free() < before + 60_000_000 // 4096:  # noqa: ASYNC110
                await anyio.sleep(0.1)
        await until(lambda: pool.stats().checkpoints == 0)


async def test_limits_hold_in_forks_of_directories(pool_of: Factory) -> None:
    async with pool_of(slot_limits=Limits(pids=40)) as pool, pool.slot() as slot:
        checkpoint = await slot.checkpoint(holds="directories")
        async with pool.slot(from_=checkpoint) as fork:
            await slot.restore(checkpoint)
            for each in (slot, fork):
                result = await each.run("for i in $(seq 60); do sleep 20 & done; jobs -p | wc -l", timeout_s=60)
                assert "fork" in result.stderr or result.exit_code != 0, result
                assert len(await each.processes()) <= 40
                await each.kill_all()


async def test_slot_with_a_disk_of_its_own_has_no_checkpoint_of_directories() -> None:
    async with SandboxPool("local", slots_per_sandbox=2, slot_limits=Limits(disk_mb=50)) as pool, pool.slot() as slot:
        with pytest.raises(ConfigError, match="disk_mb"):
            await slot.checkpoint(holds="directories")


async def test_restore_without_room_closes_the_slot_and_keeps_the_checkpoint(disk: Path) -> None:
    async with SandboxPool("local", max_sandboxes=1, slots_per_sandbox=3, base_dir=str(disk)) as pool:
        slot = await pool.acquire()
        await slot.run("head -c 20000000 /dev/urandom > large; sha256sum large > sum", check=True)
        checkpoint = await slot.checkpoint(holds="directories")
        await slot.run("rm large", check=True)
        fill(disk)
        with pytest.raises(LaunchError, match=f"Errno {errno.ENOSPC}.*large"):
            await slot.restore(checkpoint)
        with pytest.raises(SlotClosed):
            await slot.run("true")
        await pool.release(slot)
        empty(disk)
        async with pool.slot(from_=checkpoint) as fork:
            assert (await fork.run("sha256sum -c sum")).stdout == "large: OK\n"


async def test_toolbox_continues_in_a_fork_of_directories(pool_of: Factory) -> None:
    async with pool_of() as pool, pool.slot() as slot:
        toolbox = tools.Toolbox(slot, ["terminal", "file"])
        await toolbox.call("terminal", {"command": "mkdir deep; cd deep; export MARK=set HERE=$PWD; echo old > seen"})
        await toolbox.call("read_file", {"path": "seen"})
        checkpoint = await slot.checkpoint(holds="directories")
        await toolbox.call("terminal", {"command": "cd /; MARK=later"})
        async with pool.slots(2, from_=checkpoint) as forks:
            for fork in forks:
                other = tools.Toolbox(fork, like=toolbox)
                shown = await other.call("terminal", {"command": "echo $MARK $PWD; [ $PWD = $HERE ] && cat seen"})
                assert str(shown.data["output"]).split() == ["set", f"{fork.workspace}/deep", "old"]
                written = await other.call("write_file", {"path": "seen", "content": f"by {fork.id}\n"})
                assert "error" not in written.data, written.data
                assert (await fork.run("cat deep/seen")).stdout == f"by {fork.id}\n"
        await slot.restore(checkpoint)
        shown = await toolbox.call("terminal", {"command": "echo $MARK $PWD; cat seen"})
        assert str(shown.data["output"]).split() == ["set", f"{slot.workspace}/deep", "old"]


async def test_workdir_follows_to_the_fork_unless_it_is_given(pool_of: Factory) -> None:
    async with pool_of() as pool:
        slot = await pool.acquire(workdir="/tmp/elsewhere")
        async with await slot.checkpoint(holds="directories") as checkpoint:
            assert checkpoint.workdir == "/tmp/elsewhere"
            async with pool.slot(from_=checkpoint) as fork:
                assert fork.workdir == "/tmp/elsewhere"


async def test_forks_of_directories_by_sixteen_at_once() -> None:
    async with SandboxPool("local", slots_per_sandbox=17, max_sandboxes=1) as pool, pool.slot() as slot:
        await slot.run("head -c 3000000 /dev/urandom > big; sha256sum big > sum", check=True)
        async with await slot.checkpoint(holds="directories") as checkpoint, pool.fork(checkpoint, 16) as forks:
            results: list[str] = []

            async def verify(number: int) -> None:
                results.append((await forks[number].run(f"sha256sum -c sum && echo {number} > own && ls")).stdout)

            async with anyio.create_task_group() as group:
                for number in range(16):
                    group.start_soon(verify, number)
            assert results == ["big: OK\nbig\nown\nsum\n"] * 16
            assert (await slot.run("ls")).stdout == "big\nsum\n"
