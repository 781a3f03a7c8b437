"""Opening a pool without a block: once for all tasks that ask for it, and again after a failure."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from hermes_exec import ConfigError, LaunchError, SandboxPool, SlotClosed
from hermes_exec.results import PoolEvent
from tests.support.outside import alive, runner_pid

pytestmark = [pytest.mark.anyio, pytest.mark.loops]


async def test_open_has_an_effect_once_and_aclose_ends_the_pool() -> None:
    pool = SandboxPool("local")
    states = [pool.is_open]
    assert await pool.open() is pool
    states.append(pool.is_open)
    await pool.open()
    slot = await pool.acquire()
    pid = runner_pid(slot.sandbox)
    await pool.aclose()
    assert [*states, pool.is_open] == [False, True, False]
    assert not alive(pid)
    with pytest.raises(RuntimeError, match="entered once"):
        await pool.open()
    with pytest.raises(RuntimeError, match="entered once"):
        await pool.__aenter__()


async def test_pool_that_was_opened_may_be_entered_and_its_block_ends_it() -> None:
    pool = await SandboxPool("local").open()
    async with pool as entered, entered.slot() as slot:
        assert entered is await pool.open()
        with pytest.raises(RuntimeError, match="entered once"):
            await pool.__aenter__()
        assert (await slot.run("echo hi")).stdout == "hi\n"
        pid = runner_pid(slot.sandbox)
    assert not pool.is_open
    assert not alive(pid)


async def test_tasks_that_open_at_the_same_time_wait_for_one_opening() -> None:
    launched: list[PoolEvent] = []
    pool = SandboxPool("local", min_sandboxes=1, on_event=launched.append)
    ready: list[int] = []

    async def use() -> None:
        await pool.open()
        ready.append(pool.stats().sandboxes["ready"])

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(use)
    assert ready == [1] * 8
    await pool.aclose()
    assert [type(event).__name__ for event in launched].count("Launched") == 1


async def test_failed_open_reaches_all_tasks_that_wait_for_it() -> None:
    pool = SandboxPool("local", min_sandboxes=1, setup="sleep 0.3; exit 3")
    errors: list[LaunchError] = []

    async def use() -> None:
        with pytest.raises(LaunchError, match="exit code 3") as caught:
            await pool.open()
        errors.append(caught.value)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(use)
    assert errors == errors[:1] * 4


async def test_failed_open_may_be_tried_again(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.touch()
    events: list[str] = []
    pool = SandboxPool("local", base_dir=str(base), on_event=lambda event: events.append(type(event).__name__))
    for attempt in (pool.open, pool.__aenter__):
        with pytest.raises(ConfigError, match="not a directory"):
            await attempt()
        assert not pool.is_open
    base.unlink()
    base.mkdir()
    async with pool, pool.slot() as slot:
        assert (await slot.run("echo again")).stdout == "again\n"
    assert "Acquired" in events


async def test_cancelled_open_leaves_the_others_to_open() -> None:
    pool = SandboxPool("local", min_sandboxes=1, setup="sleep 0.3")
    opened: list[bool] = []

    async def wait() -> None:
        await pool.open()
        opened.append(pool.is_open)

    async with anyio.create_task_group() as tasks:
        with anyio.move_on_after(0.1) as scope:
            async with anyio.create_task_group() as first:
                first.start_soon(pool.open)
                await anyio.lowlevel.checkpoint()
                tasks.start_soon(wait)
        assert scope.cancelled_caught
    assert opened == [True]
    await pool.aclose()


async def test_pool_that_is_closed_while_it_is_opened_stays_closed() -> None:
    pool = SandboxPool("local", min_sandboxes=1, setup="sleep 0.3")
    async with anyio.create_task_group() as tasks:

        async def use() -> None:
            with pytest.raises(SlotClosed):
                await pool.open()

        tasks.start_soon(use)
        await anyio.sleep(0.1)
        await pool.aclose()
    assert not pool.is_open
    with pytest.raises(RuntimeError, match="entered once"):
        await pool.open()


async def test_trace_that_cannot_be_written_fails_the_open_and_leaves_nothing(tmp_path: Path) -> None:
    pool = SandboxPool("local", trace=tmp_path / "missing" / "trace.jsonl")
    for _ in range(2):
        with pytest.raises(ConfigError, match="trace"):
            await pool.open()
    (tmp_path / "missing").mkdir()
    async with pool, pool.slot() as slot:
        assert (await slot.run("true")).ok


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_pool_is_not_open_in_a_forked_child() -> None:
    with SandboxPool("local") as pool:
        if (child := os.fork()) == 0:
            os._exit(3 if pool.is_open else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_blocking_pool_is_open_until_its_block_ends() -> None:
    with SandboxPool("local") as pool:
        assert pool.is_open
        assert pool.open() is pool
    assert not pool.is_open
