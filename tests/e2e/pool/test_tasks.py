"""Different tasks may open a pool, acquire its slots and close it. A task that is cancelled leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from anyio.lowlevel import checkpoint

from hermes_exec import ConfigError, ExecError, LocalConfig, PoolEvent, SandboxPool, SlotClosed
from tests.support.outside import count_becomes, ends, mark, marked, runner_pid

T = TypeVar("T")


@asynccontextmanager
async def by_two_tasks(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter in one task and leave in another, as fixtures do."""
    entered: list[T] = []

    async def enter() -> None:
        entered.append(await context.__aenter__())

    async def leave() -> None:
        await context.__aexit__(None, None, None)

    await in_another_task(enter)
    yield entered[0]
    await in_another_task(leave)


async def in_another_task(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)


@pytest.mark.anyio
@pytest.mark.loops
async def test_a_task_opens_and_another_closes() -> None:
    async with by_two_tasks(SandboxPool("local")) as pool, by_two_tasks(pool.slot()) as slot:
        async with by_two_tasks(slot.session()) as session:
            assert (await session.run("echo hello")).stdout == "hello\n"
        async with by_two_tasks(slot.forward(9)) as forward:
            assert forward.port
    await ends(runner_pid(slot.sandbox))


@pytest.mark.anyio
@pytest.mark.loops
async def test_a_pool_outlives_the_scope_and_the_task_that_opened_it() -> None:
    pool = SandboxPool("local")
    with anyio.move_on_after(60) as opening:
        await pool.__aenter__()
    async with anyio.create_task_group() as others:
        others.cancel_scope.cancel()
    opening.cancel()
    await checkpoint()
    async with pool.slot() as slot:
        assert (await slot.run("echo hello")).stdout == "hello\n"
    with anyio.CancelScope():
        await pool.__aexit__(None, None, None)
    await ends(runner_pid(slot.sandbox))


@pytest.mark.anyio
@pytest.mark.loops
async def test_a_pool_whose_task_is_cancelled_ends_its_sandboxes() -> None:
    word, pids = mark(), []
    with anyio.CancelScope() as scope:
        async with SandboxPool("local") as pool, pool.slot() as slot, anyio.create_task_group() as tasks:
            pids.append(runner_pid(slot.sandbox))
            tasks.start_soon(slot.run, f"sleep {word}")
            await count_becomes(word, 1)
            scope.cancel()
    assert scope.cancelled_caught
    assert marked(word) == []
    await ends(pids[0])


@pytest.mark.anyio
async def test_request_whose_slot_is_prepared_ends_with_the_pool() -> None:
    word, errors = mark(), []

    async def acquire(pool: SandboxPool) -> None:
        with pytest.raises(SlotClosed, match="the pool was closed") as caught:
            await pool.acquire()
        errors.append(caught.value)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks, SandboxPool("local", slot_setup=f"sleep {word}") as pool:
            tasks.start_soon(acquire, pool)
            await count_becomes(word, 1)
    assert len(errors) == 1
    assert marked(word) == []


def test_cancelling_every_task_of_the_event_loop_closes_the_pool() -> None:
    """A common way to shut down on SIGTERM: what a library runs in the background is cancelled with the rest."""

    async def main() -> tuple[int, list[BaseException | None]]:
        async with SandboxPool("local", slots_per_sandbox=1, max_sandboxes=1) as pool:
            async with pool.slot() as slot:
                running = asyncio.create_task(slot.run("sleep 100"))
                waiting = asyncio.create_task(pool.acquire())
                await asyncio.sleep(0.2)
                others = asyncio.all_tasks() - {asyncio.current_task(), running, waiting}
                for task in others:
                    task.cancel()
                seen: list[BaseException | None] = []
                for work in (running, waiting):
                    outcomes = await asyncio.wait_for(asyncio.gather(work, return_exceptions=True), 30)
                    seen += [one if isinstance(one, BaseException) else None for one in outcomes]
                with pytest.raises(SlotClosed, match="the pool was closed"):
                    await asyncio.wait_for(pool.acquire(), 30)
            return runner_pid(slot.sandbox), seen

    pid, (running, waiting) = asyncio.run(main())
    assert isinstance(running, ExecError)
    assert isinstance(waiting, SlotClosed)
    anyio.run(ends, pid)


def test_closing_goes_on_when_asyncio_cancels_it() -> None:
    """Its own cancel heeds no shield of anyio."""

    async def main() -> int:
        async with SandboxPool("local") as pool:
            async with pool.slot() as slot:
                pid = runner_pid(slot.sandbox)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pool.aclose(), 0.001)
            await asyncio.wait_for(pool.aclose(), 30)
        return pid

    anyio.run(ends, asyncio.run(main()))


def test_an_entry_that_is_cancelled_leaves_no_sandbox(tmp_path: Path) -> None:
    rng = random.Random(7)

    async def enter() -> None:
        async with SandboxPool(LocalConfig(base_dir=str(tmp_path)), min_sandboxes=2, max_sandboxes=2):
            pass

    async def main() -> None:
        for _ in range(40):
            task = asyncio.create_task(enter())
            await asyncio.sleep(rng.random() * 0.25)
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


def test_a_reset_goes_on_when_asyncio_cancels_it() -> None:
    async def main() -> None:
        async with SandboxPool("local") as pool, pool.slot() as slot:
            for pause_ms in range(20):
                assert (await slot.run("sleep 300 & touch here")).exit_code == 0
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(slot.reset(), pause_ms / 1000)
                result = await slot.run("ls")
                assert result.stdout in ({"", "here\n"} if pause_ms == 0 else {""})

    asyncio.run(main())


@pytest.mark.whole
def test_nothing_is_written_after_a_download_that_asyncio_cancels(tmp_path: Path) -> None:
    async def main() -> list[tuple[int, int]]:
        found = []
        async with SandboxPool("local") as pool, pool.slot() as slot:
            await slot.run("mkdir t; for i in $(seq 300); do head -c 20000 /dev/zero > t/f$i; done")
            for number in range(10):
                target = tmp_path / f"o{number}"
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(slot.files.download("t", target), 0.03 + 0.003 * number)
                before = len(list(target.iterdir())) if target.exists() else 0
                await asyncio.sleep(0.2)
                found.append((before, len(list(target.iterdir())) if target.exists() else 0))
        return found

    for before, after in asyncio.run(main()):
        assert before == after


@pytest.mark.anyio
async def test_a_slot_is_of_one_event_loop() -> None:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        session, process = slot.session(), await slot.spawn("cat", stdin=True)
        assert process.stdin is not None
        send = process.stdin.send
        calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
            lambda: slot.run("touch ran"),
            lambda: session.run("touch ran"),
            lambda: slot.spawn("touch ran"),
            lambda: slot.files.write_text("ran", ""),
            lambda: process.wait(1),
            lambda: send(b"x"),
        ]
        for call in calls:
            for library in ("asyncio", "trio"):
                with pytest.raises(RuntimeError, match="another event loop"):
                    await anyio.to_thread.run_sync(partial(anyio.run, call, backend=library))
        assert (await session.run("ls", timeout_s=10)).stdout == ""


@pytest.mark.anyio
@pytest.mark.loops
async def test_slot_outside_its_event_loop_names_the_remedy() -> None:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        with pytest.raises(RuntimeError, match="task of that loop, or enter the pool with plain `with`"):
            await anyio.to_thread.run_sync(slot.session)
        session = await anyio.to_thread.run_sync(partial(anyio.from_thread.run_sync, slot.session))
        assert (await session.run("echo here")).stdout == "here\n"


@pytest.mark.anyio
async def test_a_slot_goes_back_to_its_own_pool() -> None:
    async with SandboxPool("local") as pool, SandboxPool("local") as other, pool.slot() as slot:
        with pytest.raises(ConfigError, match="another pool"):
            await other.release(slot)
        assert (await slot.run("true")).ok


def test_a_forward_whose_entry_is_cancelled_leaves_no_descriptor() -> None:
    async def main() -> None:
        async with SandboxPool("local") as pool, pool.slot() as slot:

            async def use() -> None:
                async with slot.forward(9):
                    await asyncio.sleep(60)

            await asyncio.wait([asyncio.create_task(asyncio.wait_for(use(), 0.05))])
            before = len(os.listdir("/proc/self/fd"))
            for steps in range(1, 12):
                tasks = [asyncio.create_task(use()) for _ in range(20)]
                for _ in range(steps):
                    await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                assert len(os.listdir("/proc/self/fd")) <= before, steps

    asyncio.run(main())


def test_a_callback_that_awaits_what_was_cancelled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[PoolEvent] = []

    async def on_event(event: PoolEvent) -> None:
        seen.append(event)
        if len(seen) == 1:
            other = asyncio.create_task(asyncio.sleep(60))
            other.cancel()
            await other

    async def main() -> str:
        async with SandboxPool("local", on_event=on_event) as pool, pool.slot() as slot:
            return (await slot.run("echo hello")).stdout

    assert asyncio.run(main()) == "hello\n"
    assert [record.getMessage() for record in caplog.records if record.exc_info] == ["on_event failed"]
    assert len(seen) > 2


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("face", ["asyncio", "trio", "blocking"])
@pytest.mark.parametrize("when", ["Ready", "Acquired"])
def test_an_interrupt_in_a_callback_goes_to_the_main_thread_and_an_exit_is_logged(
    when: str, face: str, raised: type[BaseException], awaited: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def on_event(event: PoolEvent) -> None:
        if type(event).__name__ == when:
            raise raised("of the callback")

    async def later(event: PoolEvent) -> None:
        on_event(event)

    made = partial(SandboxPool, "local", base_dir=str(tmp_path), on_event=later if awaited else on_event)

    async def main() -> str:
        async with made() as pool, pool.slot() as slot:
            return (await slot.run("sleep 0.2; echo hello")).stdout

    def run() -> str:
        if face != "blocking":
            return anyio.run(main, backend=face)
        with made() as pool, pool.slot() as slot:
            return slot.run("sleep 0.2; echo hello").stdout

    if raised is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            run()
    else:
        assert run() == "hello\n"
    told = [record.getMessage() for record in caplog.records if record.exc_info]
    assert told == ["on_event failed" if awaited else f"on_event failed for {when}"]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_an_event_loop_that_ends_with_an_open_pool_ends_its_sandboxes(library: str) -> None:
    async def main() -> int:
        pool = await SandboxPool("local").__aenter__()
        slot = await pool.acquire()
        assert (await slot.run("true")).exit_code == 0
        return runner_pid(slot.sandbox)

    anyio.run(ends, anyio.run(main, backend=library))
