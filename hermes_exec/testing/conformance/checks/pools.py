"""Lending slots."""

from __future__ import annotations

import time

import anyio

from hermes_exec.errors import AcquireTimeout, ConfigError
from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.expect import equal, raises, that
from hermes_exec.testing.conformance.registry import check


@check("pool", own_pool=True)
async def check_acquire_times_out(ctx: Context) -> None:
    """Waiting for a slot ends with AcquireTimeout when none becomes free, and the slot in use works on."""
    async with ctx.pool(slots_per_sandbox=1) as pool, pool.slot() as slot:
        started = time.monotonic()
        with raises(AcquireTimeout):
            await pool.acquire(timeout_s=0.5)
        that(time.monotonic() - started < 10, "it waited too long")
        await slot.files.write_text("x", "y")


@check("pool", own_pool=True)
async def check_waiters_are_served_in_order(ctx: Context) -> None:
    """Who waits first is served first."""
    served: list[int] = []
    async with ctx.pool(slots_per_sandbox=1) as pool:

        async def wait(i: int) -> None:
            async with pool.slot():
                served.append(i)

        first = await pool.acquire()
        async with anyio.create_task_group() as tasks:
            for i in range(4):
                tasks.start_soon(wait, i)
                while pool.stats().waiting <= i:  # noqa: ASYNC110 - stats are polled
                    await anyio.sleep(0.01)
            await pool.release(first)
    equal(served, [0, 1, 2, 3], "order")


@check("pool", own_pool=True)
async def check_gang_gets_all_or_none(ctx: Context) -> None:
    """A gang gets all its slots at once; more than the pool can ever hold is ConfigError."""
    async with ctx.pool(slots_per_sandbox=1, max_sandboxes=2) as pool:
        async with pool.slots(2) as slots:
            equal(len({slot.id for slot in slots}), 2, "slots")
        with raises(ConfigError):
            async with pool.slots(3):
                pass


@check("pool", own_pool=True)
async def check_stats(ctx: Context) -> None:
    """Stats counts slots in use and waiting requests."""
    async with ctx.pool(slots_per_sandbox=1) as pool:
        async with pool.slot():
            equal(pool.stats().slots_in_use, 1, "slots in use")
        with anyio.fail_after(20):
            while pool.stats().slots_in_use:  # noqa: ASYNC110 - stats are polled
                await anyio.sleep(0.01)


@check("pool", "helper", own_pool=True)
async def check_closing_a_pool_ends_everything(ctx: Context) -> None:
    """A pool that is closed leaves no process of its slots behind, counted from outside."""
    async with ctx.pool() as pool:
        slot = await pool.acquire()
        await ctx.background("tree", 300, ctx.mark, slot=slot)
        await ctx.expect_alive(9)
    await ctx.expect_none_left(10)


@check("pool", "helper", own_pool=True)
async def check_cancelled_pool_ends_everything(ctx: Context) -> None:
    """A pool whose task is cancelled leaves no process behind either."""
    async with anyio.create_task_group() as tasks:

        async def work() -> None:
            async with ctx.pool() as pool, pool.slot() as slot:
                await slot.run(await ctx.argv("tree", 300, ctx.mark, slot=slot))

        tasks.start_soon(work)
        await ctx.expect_alive(9, within_s=30)
        tasks.cancel_scope.cancel()
    await ctx.expect_none_left(10)


@check("pool", own_pool=True)
async def check_two_pools_side_by_side(ctx: Context) -> None:
    """Two pools of one process know nothing of each other."""
    async with ctx.pool() as first, ctx.pool() as second, first.slot() as a, second.slot() as b:
        that(a.sandbox != b.sandbox, "they share a sandbox")
        await a.files.write_text("mine", "x")
        that(not await b.files.exists("mine"), "they share a workspace")


@check("bad input", own_pool=True)
async def check_unknown_options_are_told(ctx: Context) -> None:
    """An option that does not exist is ConfigError before anything starts."""
    with raises(ConfigError, TypeError, about="no_such_option"):
        async with ctx.factory(no_such_option=1):
            pass
