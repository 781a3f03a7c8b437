"""A disk that others have filled says nothing about the model; one that the slot has filled does."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import anyio
import pytest

from hermes_agent import CommandCheck, Completion, Rollout, RolloutResult, Scoring, ScriptedModel
from hermes_agent.messages import Message
from hermes_agent.models.scripted import ScriptStep, call
from hermes_exec import AcquireTimeout, ErrorCause, HostDiskFull, LaunchError, SandboxPool, Slot
from hermes_exec.tools import Toolbox
from tests.support.directories import let_others_pass
from tests.support.disks import empty, fill, small_disk
from tests.support.outside import runner_pid

pytestmark = pytest.mark.anyio
HINT = "Remove files"
FILL = "cat /dev/zero > large; rm -f nothing"
HOLD = (
    "import os, time\n"
    "file = open('large', 'wb', 0)\n"
    "os.remove('large')\n"
    "try:\n    while True: file.write(bytes(1 << 16))\n"
    "except OSError: pass\n"
    "print('full', flush=True)\n"
    "time.sleep(100)\n"
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    let_others_pass(tmp_path)
    if os.geteuid() != 0:
        pytest.skip("a mount takes root")
    with small_disk(tmp_path / "disk") as made:
        yield made


def pool_at(disk: Path, slots: int = 2) -> SandboxPool:
    return SandboxPool("local", base_dir=str(disk), slots_per_sandbox=slots, max_sandboxes=1, acquire_timeout_s=60)


async def test_disk_full_of_others_files(disk: Path) -> None:
    async with pool_at(disk) as pool, pool.slot() as slot, Toolbox(slot) as toolbox:
        await slot.check_disk()
        await slot.run("echo before > file")
        before = slot.disk_full
        assert not before
        fill(disk)
        written = await toolbox.call("write_file", {"path": "other", "content": "x" * 100_000})
        assert written.error_kind == "no_space"
        assert HINT not in written.content
        await slot.run("true")
        assert slot.disk_full
        with pytest.raises(HostDiskFull) as caught:
            await toolbox.check_disk()
        assert (caught.value.cause, caught.value.retryable) == (ErrorCause.INFRA, True)
        empty(disk)
        await slot.check_disk()
        assert not slot.disk_full


WRITERS: dict[str, dict[str, object]] = {
    "write_file": {"path": "new", "content": "x" * 300_000},
    "patch": {"path": "file", "old_string": "before", "new_string": "x" * 300_000},
    "execute_code": {"code": "open('new', 'w').write('x' * 300_000)"},
    "terminal": {"command": "head -c 300000 /dev/zero > new"},
}


async def test_neighbour_that_fills_the_disk_is_not_the_models_doing(disk: Path) -> None:
    async with pool_at(disk) as pool, pool.slots(2) as (neighbour, slot), Toolbox(slot, toolsets=("all",)) as toolbox:
        await toolbox.call("write_file", {"path": "file", "content": "before\n"})
        await neighbour.run(FILL)
        for name, arguments in WRITERS.items():
            result = await toolbox.call(name, arguments)
            assert not result.ok, name
            assert HINT not in result.content, name
            with pytest.raises(HostDiskFull):
                await toolbox.check_disk()
        with pytest.raises(OSError, match="no space left"):
            await slot.files.write_bytes("new", bytes(300_000))
        with pytest.raises(HostDiskFull):
            await toolbox.check_disk()
        assert (await slot.run("cat file")).stdout == "before\n"
        await neighbour.check_disk()


async def test_disk_full_of_the_slots_own_files(disk: Path) -> None:
    async with pool_at(disk) as pool, pool.slot() as slot, Toolbox(slot) as toolbox:
        await slot.run(FILL)
        assert slot.disk_full
        written = await toolbox.call("write_file", {"path": "other", "content": "x" * 100_000})
        assert written.error_kind == "no_space"
        assert HINT in written.content
        await toolbox.check_disk()
        await slot.run("rm large")
        assert (await toolbox.call("write_file", {"path": "other", "content": "x" * 100_000})).ok


async def test_disk_full_of_a_removed_file_that_the_slot_holds_open(disk: Path) -> None:
    async with pool_at(disk) as pool, pool.slot() as slot:
        await slot.spawn(["python3", "-c", HOLD])
        with anyio.fail_after(60):
            while not slot.disk_full:
                await slot.run("true")
        assert not slot.disk_filled_by_others
        await slot.check_disk()
        assert await slot.processes()


async def test_nobody_gets_a_slot_of_a_sandbox_with_a_full_disk(disk: Path) -> None:
    async with pool_at(disk) as pool:
        async with pool.slot():
            pass
        fill(disk)
        acquired = anyio.Event()

        async def acquire() -> None:
            async with pool.slot() as slot:
                acquired.set()
                assert (await slot.run("echo there")).stdout == "there\n"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(acquire)
            with anyio.move_on_after(3):
                await acquired.wait()
            assert not acquired.is_set()
            empty(disk)
            with anyio.fail_after(30):
                await acquired.wait()


async def test_timeout_names_the_full_disk(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with pool_at(disk) as pool:
        async with pool.slot():
            pass
        fill(disk)
        with pytest.raises(AcquireTimeout, match=r"until a disk that is nearly full has room") as caught:
            await pool.acquire(timeout_s=3)
        assert (caught.value.cause, caught.value.retryable) == (ErrorCause.INFRA, True)
        # This logger is shown on the command line.
        assert [record.name for record in caplog.records if "nearly full" in record.message] == [
            "hermes_exec.pool.waiting"
        ]


async def rolled(pool: SandboxPool, during: str, after: Callable[[], None] = lambda: None) -> RolloutResult:
    """A rollout that has to write a file of 1 MB; `after` is called once its first command has ended."""

    def last(_: Sequence[Message]) -> Completion:
        after()
        return Completion("done", (), None)

    steps: list[ScriptStep] = [Completion(None, (call("terminal", {"command": during}),), None), last]
    check = CommandCheck("test $(wc -c < work) = 1000000")
    rollout = Rollout(messages="Write work.", scoring=Scoring(check=check))
    return await rollout.run(pool, ScriptedModel(steps))


WORK = "head -c 1000000 /dev/zero > work"


async def test_rollout_on_a_disk_that_others_fill_is_not_scored(disk: Path) -> None:
    async with pool_at(disk) as pool:
        good = await rolled(pool, WORK)
        assert (good.solved, good.cause) == (True, ErrorCause.POLICY)
        async with pool.slot():
            pass

        late = await rolled(pool, WORK, after=lambda: fill(disk))
        assert (late.verdict, late.trainable, late.cause) == (None, False, ErrorCause.INFRA)
        assert isinstance(late.exception, HostDiskFull)
        empty(disk)
        own = await rolled(pool, FILL)
        assert (own.solved, own.trainable, own.cause) == (False, True, ErrorCause.POLICY)


async def test_files_of_the_task_are_not_the_doing_of_the_model(disk: Path) -> None:
    async with pool_at(disk) as pool:
        steps: list[ScriptStep] = [
            Completion(None, (call("terminal", {"command": WORK}),), None),
            Completion("done", (), None),
        ]
        task = {"data": bytes(40_000_000)}

        async def prepare(_: Slot) -> None:
            fill(disk)

        for kind in ({"files": task}, {"files": task, "prepare": prepare}):
            scoring = Scoring(check=CommandCheck("test $(wc -c < work) = 1000000"), score_in="slot")
            result = await Rollout(messages="Write work.", scoring=scoring, **kind).run(pool, ScriptedModel(steps))
            if "prepare" in kind:
                assert (result.trainable, result.cause) == (False, ErrorCause.INFRA), result
            else:
                assert (result.solved, result.cause) == (True, ErrorCause.POLICY)


async def test_disk_wait_ends_when_nobody_can_make_room(disk: Path) -> None:
    pool = SandboxPool("local", base_dir=str(disk), slots_per_sandbox=2, acquire_timeout_s=60, disk_wait_s=1)
    async with pool, pool.slots(2) as (slot, other):
        await pool.release(other)
        fill(disk)
        with pytest.raises(AcquireTimeout):  # the holder of the other slot may remove files
            await pool.acquire(timeout_s=4)
        await pool.release(slot)
        with anyio.fail_after(30), pytest.raises(HostDiskFull, match=re.escape(f"({disk}) is nearly full")) as caught:
            await pool.acquire()
        assert (caught.value.cause, caught.value.retryable) == (ErrorCause.INFRA, True)
        empty(disk)
        async with pool.slot():
            pass


async def test_disk_wait_goes_on_when_the_sandbox_dies(disk: Path) -> None:
    pool = SandboxPool("local", base_dir=str(disk), acquire_timeout_s=60, disk_wait_s=50)
    async with pool:
        async with pool.slot() as slot:
            pid = runner_pid(slot.sandbox)
        fill(disk)
        with pytest.raises(AcquireTimeout, match="nearly full"):
            await pool.acquire(timeout_s=1.5)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises((AcquireTimeout, LaunchError)):
            await pool.acquire(timeout_s=4)


async def test_command_line_names_the_full_disk(disk: Path) -> None:
    fill(disk)
    os.truncate(disk / "others", (disk / "others").stat().st_size - (2 << 20))  # enough for a sandbox to start
    command = (sys.executable, "-m", "hermes_exec.cli.main", "run", "-o", f"base_dir={disk}", "--", "true")
    with anyio.fail_after(60):
        done = await anyio.run_process(command, check=False)
    assert done.returncode == 3
    assert f"({disk}) is nearly full" in " ".join(done.stderr.decode().split())
