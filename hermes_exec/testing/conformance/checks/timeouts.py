"""Timeouts, cancellation, and ending whole trees of processes."""

from __future__ import annotations

import time

import anyio

from hermes_exec.errors import SandboxDied
from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.expect import equal, that
from hermes_exec.testing.conformance.registry import NotGiven, check

# The descendants of the applet `tree`: one for each way to escape a process tree.
RUNAWAYS = 8


@check("timeouts", "helper")
async def check_timeout_is_a_result(ctx: Context) -> None:
    """A command over its timeout is ended and marked as timed out; its output is kept."""
    argv = await ctx.argv("alternate", 1000, 0.05)
    started = time.monotonic()
    result = await ctx.slot.run(argv, timeout_s=2)
    that(time.monotonic() - started < 30, f"it took {time.monotonic() - started:.1f} s")
    equal((result.timed_out, result.ok, result.signal), (True, False, 15), "timed_out, ok, signal")
    equal(result.exit_code, 143, "exit code")
    that(result.stdout.startswith("out 0\nout 1\n"), f"partial output {result.stdout[:50]!r}")


@check("timeouts", "helper")
async def check_timeout_kills_what_ignores_term(ctx: Context) -> None:
    """A program that ignores TERM is killed half a second later."""
    argv = await ctx.argv("stubborn", 60)
    started = time.monotonic()
    result = await ctx.slot.run(argv, timeout_s=2)
    that(time.monotonic() - started < 30, f"it took {time.monotonic() - started:.1f} s")
    equal((result.timed_out, result.exit_code, result.stdout), (True, 137, "ready\n"), "result")


@check("timeouts", "helper")
async def check_timeout_kills_the_process(ctx: Context) -> None:
    """Nothing of a command is left after its timeout."""
    argv = await ctx.argv("sleep", 60, ctx.mark)

    async def expect_processes() -> None:
        await ctx.expect_alive(1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(expect_processes)
        result = await ctx.slot.run(argv, timeout_s=5)
    that(result.timed_out, "it did not time out")
    await ctx.expect_none_left()


@check("timeouts", "helper")
async def check_what_is_ended_takes_nothing_else_with_it(ctx: Context) -> None:
    """Commands that start while others reach their timeouts are not ended with those."""
    sleep, echo = await ctx.argv("sleep", 60), await ctx.argv("echo", "whole")

    async def late(limit_s: float) -> None:
        that((await ctx.slot.run(sleep, timeout_s=limit_s)).timed_out, "it did not time out")

    async def early(pause_s: float) -> None:
        await anyio.sleep(pause_s)
        result = await ctx.slot.run(echo)
        equal((result.exit_code, result.stdout), (0, "whole\n"), "exit code and output")

    for _ in range(20):
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(early, 0.006 * number)
                tasks.start_soon(late, 0.01 + 0.01 * (number % 4))


@check("timeouts", "shell", "helper")
async def check_timeout_kills_children_of_a_shell(ctx: Context) -> None:
    """A shell's background and foreground children end with its timeout."""
    argv = " ".join(f"'{word}'" for word in await ctx.argv("sleep", 60, ctx.mark))

    async def expect_processes() -> None:
        await ctx.expect_alive(2)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(expect_processes)
        result = await ctx.slot.run(f"{argv} & {argv}; :", timeout_s=5)
    that(result.timed_out, "it did not time out")
    await ctx.expect_none_left()


@check("timeouts", "helper")
async def check_timeout_kills_every_kind_of_runaway(ctx: Context) -> None:
    """setsid, double fork, own groups, TERM-ignorers, stopped children: all end with the timeout, counted from
    outside.
    """
    argv = await ctx.argv("tree", 120, ctx.mark)

    async def expect_processes() -> None:
        await ctx.expect_alive(RUNAWAYS + 1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(expect_processes)
        result = await ctx.slot.run(argv, timeout_s=5)
    that(result.timed_out, "it did not time out")
    that(result.killed is not None and result.killed.left == 0, f"receipt {result.killed}")
    await ctx.expect_none_left()
    equal((await ctx.applet("echo", "usable")).stdout, "usable\n", "the slot afterwards")


@check("timeouts", "helper")
async def check_timeout_with_a_child_that_holds_stdout(ctx: Context) -> None:
    """A tree whose escaped child holds stdout does not hold the call."""
    argv = await ctx.argv("tree", 120, ctx.mark)
    started = time.monotonic()
    result = await ctx.slot.run(argv, timeout_s=1, merge_stderr=True)
    that(result.timed_out and time.monotonic() - started < 30, f"it took {time.monotonic() - started:.1f} s")
    await ctx.expect_none_left()


@check("timeouts", "helper")
async def check_timeout_of_one_leaves_others(ctx: Context) -> None:
    """A timeout ends the tree of its own command only."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: ctx.applet("stubborn", 60, timeout_s=0.3))
        result = await ctx.applet("sleep", 2.0, timeout_s=30)
    equal((result.exit_code, result.timed_out), (0, False), "the other command")


@check("timeouts", "helper")
async def check_no_timeout(ctx: Context) -> None:
    """timeout_s=None lets a command end by itself."""
    equal((await ctx.applet("sleep", 0.5, timeout_s=None)).exit_code, 0, "exit code")


@check("timeouts", "helper", alone=True)
async def check_clock_starts_with_the_process(ctx: Context) -> None:
    """Waiting behind other commands does not use up a command's timeout."""
    argv = await ctx.argv("sleep", 0.2)
    results = await ctx.slot.run_many([argv] * 60, timeout_s=10)
    equal({(r.exit_code, r.timed_out) for r in results}, {(0, False)}, "results")


@check("cancel", "helper")
async def check_cancel_ends_the_tree(ctx: Context) -> None:
    """Cancelling a call ends every process of it and leaves the slot usable."""
    argv = await ctx.argv("tree", 120, ctx.mark)
    started = time.monotonic()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: ctx.slot.run(argv))
        await ctx.expect_alive(RUNAWAYS + 1)
        started = time.monotonic()
        tasks.cancel_scope.cancel()
    that(time.monotonic() - started < 30, f"cancelling took {time.monotonic() - started:.1f} s")
    await ctx.expect_none_left()
    equal((await ctx.applet("echo", "usable")).stdout, "usable\n", "the slot afterwards")


@check("cancel", "helper")
async def check_cancel_at_any_moment(ctx: Context) -> None:
    """A call that is cancelled at whatever await leaves no process, and the slot stays usable."""
    argv = await ctx.argv("sleep", 60, ctx.mark)
    for step in range(14):
        with anyio.move_on_after(step * 0.002):
            await ctx.slot.run(argv, stdin=b"x" * 100_000)
    equal((await ctx.applet("echo", "usable")).stdout, "usable\n", "the slot afterwards")
    await ctx.expect_none_left()


@check("kill", "helper")
async def check_kill_all_ends_what_commands_left(ctx: Context) -> None:
    """kill_all ends processes that ended commands left behind, runaways included, and returns their number."""
    await ctx.applet("tree", 120, ctx.mark, "end")
    await ctx.expect_alive(RUNAWAYS)
    receipt = await ctx.slot.kill_all()
    equal(receipt.left, 0, "left")
    that(receipt.found >= RUNAWAYS, f"the receipt found {receipt.found}")
    await ctx.expect_none_left()


@check("kill", "helper", "procfs")
async def check_zombies_are_reaped(ctx: Context) -> None:
    """Orphans that end are reaped: no zombie stays in the sandbox."""
    for _ in range(5):
        await ctx.applet("leave", 0.05, ctx.mark)
    left = [ctx.mark]
    for _ in range(100):
        left = [p.state for p in await ctx.slot.processes() if p.state == "Z" or ctx.mark in p.argv]
        if not left:
            break
        await anyio.sleep(0.1)
    that(not left, f"zombies are left: {left}")


@check("kill", "helper", own_pool=True, alone=True)
async def check_fork_bomb_is_ended(ctx: Context) -> None:
    """A fork bomb under a limit of processes ends with its timeout, and the slot works on. Fired only where the
    limit is proven.
    """
    from hermes_exec.config import Limits

    async with ctx.slot_with_limits("a limit of processes", Limits(pids=80)) as slot:
        how = slot.isolation.limits.get("pids", "not enforced")
        proof = await ctx.applet("many", 120, 0.2, ctx.mark, slot=slot)
        if not proof.stdout.endswith("EAGAIN\n"):
            raise NotGiven(f"not fired: 120 processes were allowed under a limit of 80 ({how})")
        await slot.kill_all()
        bomb = await ctx.background("bomb", ctx.mark, slot=slot)
        await ctx.expect_alive(8)  # each has threads of its own, which count for the limit too
        started = time.monotonic()
        receipt = await bomb.kill()
        that(time.monotonic() - started < 30, f"ending it took {time.monotonic() - started:.1f} s")
        equal(receipt.left, 0, "left")
        await ctx.expect_none_left()
        equal((await ctx.applet("echo", "usable", slot=slot)).stdout, "usable\n", "the slot afterwards")


@check("kill", "helper", own_pool=True)
async def check_signals_to_process_1(ctx: Context) -> None:
    """No signal from inside a slot ends the runner in order, which would look like an end from outside: it is ignored,
    or the error suspects the tenant. Fired only in a proven process namespace.
    """
    if not ctx.facts.own_pids:
        raise NotGiven("not fired: the slot is not proven to have its own process namespace")
    async with ctx.pool() as pool, pool.slot() as slot:
        try:
            for number in (1, 2, 3, 10, 12, 15, 15, 34, 64):
                await ctx.applet("kill", 1, number, slot=slot, timeout_s=20)
            equal((await ctx.applet("echo", "goes on", slot=slot)).stdout, "goes on\n", "the slot afterwards")
        except SandboxDied as error:
            that(slot.isolation.level == "exclusive", f"the tenant of a slot has ended its sandbox: {error}")
            suspect = error.post_mortem and error.post_mortem.suspect
            equal(suspect, "tenant", "the suspect")


@check("kill", "helper", own_pool=True, alone=True)
async def check_kill_everybody(ctx: Context) -> None:
    """`kill -9 -1` inside a slot ends nothing but that slot's own, and is a result: the slot goes on. In a whole
    sandbox, where root's signal reaches the slot's agent, the error suspects the tenant. A reset mends both. Fired
    only in a proven process namespace of its own.
    """
    if not ctx.facts.own_pids:
        raise NotGiven("not fired: the slot is not proven to have its own process namespace")
    async with ctx.pool() as pool:
        async with pool.slot() as slot:
            other = await ctx.background("sleep", 300, slot=slot)
            try:
                result = await ctx.applet("kill", -1, 9, slot=slot, timeout_s=20)
                that(result.exit_code in (0, 1, 137), f"exit code {result.exit_code}")
                equal((await other.wait(timeout_s=10)).signal, 9, "signal of another process of the slot")
                equal((await ctx.applet("echo", "goes on", slot=slot)).stdout, "goes on\n", "the slot afterwards")
            except SandboxDied as error:
                that(slot.isolation.level == "exclusive", f"the tenant of a slot has ended its init: {error}")
                suspect = error.post_mortem and error.post_mortem.suspect
                equal(suspect, "tenant", "the suspect")
            await slot.reset()
            equal((await ctx.applet("echo", "usable", slot=slot)).stdout, "usable\n", "the slot after a reset")
        async with pool.slot() as slot:
            equal((await ctx.applet("echo", "next", slot=slot)).stdout, "next\n", "the next slot")
