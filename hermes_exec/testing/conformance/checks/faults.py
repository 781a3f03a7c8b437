"""What fails underneath: sandboxes that die, memory and disks that run out, drivers that are killed."""

from __future__ import annotations

import pickle
import signal
import sys
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from anyio import to_thread

from hermes_exec.errors import ExecError, OutcomeUnknown, SandboxDied
from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.disks import small_disk
from hermes_exec.testing.conformance.expect import equal, raises, that
from hermes_exec.testing.conformance.registry import NotGiven, check
from hermes_exec.testing.conformance.sandboxes import break_sockets, open_sockets, signalable

if TYPE_CHECKING:
    from hermes_exec import Slot

DRIVER = "from hermes_exec.testing.conformance.driver import main; main()"


@check("faults", "helper", "kill-sandbox", own_pool=True)
async def check_killed_sandbox_is_told(ctx: Context) -> None:
    """A sandbox killed under a command gives a typed error with a post-mortem at once, then on each call, and is
    replaced.
    """
    async with ctx.pool(slots_per_sandbox=1) as pool:
        async with pool.slot() as slot:
            sandbox = signalable(pool, slot)
            if sandbox is None:
                raise NotGiven("no way to kill the sandbox from outside")
            argv = await ctx.argv("sleep", 120, ctx.mark, slot=slot)
            caught: list[ExecError] = []

            async def run() -> None:
                try:
                    await slot.run(argv)
                except ExecError as error:
                    caught.append(error)

            started = time.monotonic()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await ctx.expect_alive(1)
                started = time.monotonic()
                await to_thread.run_sync(sandbox.signal_now, signal.SIGKILL)
            that(time.monotonic() - started < 30, f"it took {time.monotonic() - started:.1f} s until the error")
            that(caught and isinstance(caught[0], (SandboxDied, OutcomeUnknown)), f"the call under way got {caught}")
            with raises(SandboxDied) as later:
                await slot.files.read_bytes("x")
            post_mortem = getattr(later.error, "post_mortem")  # noqa: B009 - typed as BaseException
            that(post_mortem.suspect != "tenant", f"the tenant is suspected: {post_mortem}")
        await ctx.expect_none_left()
        async with pool.slot(timeout_s=60) as slot:
            equal((await ctx.applet("echo", "replaced", slot=slot)).stdout, "replaced\n", "the next slot")


@check("faults", "helper", own_pool=True, alone=True)
async def check_memory_limit(ctx: Context) -> None:
    """A command over the memory limit is a result with oom_killed, and the slot or its replacement works on."""
    from hermes_exec.config import Limits

    async with ctx.slot_with_limits("a memory limit", Limits(memory_mb=160)) as slot:
        how = slot.isolation.limits.get("memory_mb", "") or slot.isolation.limits.get("memory", "")
        try:
            result = await ctx.applet("grow", 400, 1, slot=slot, timeout_s=40)
        except SandboxDied as error:
            that(
                error.post_mortem is not None and error.post_mortem.oom,
                f"the post-mortem has no oom: {error.post_mortem}",
            )
            return
        that(
            result.oom_killed and result.exit_code == 137,
            f"exit {result.exit_code}, oom_killed {result.oom_killed} ({how})",
        )
        equal((await ctx.applet("echo", "usable", slot=slot)).stdout, "usable\n", "the slot afterwards")


@check("faults", "helper", own_pool=True, alone=True)
async def check_full_disk(ctx: Context) -> None:
    """On a full disk writes are ENOSPC and leave old files whole, and commands still run. At most 300 MiB are written,
    and only under a limit of the disk, on a disk made for it, or on memory that is proven to be the slot's own.
    """
    from hermes_exec.config import Limits

    try:
        async with ctx.slot_with_limits("a disk limit", Limits(disk_mb=48)) as slot:
            await _fill(ctx, slot, slot.workspace)
            return
    except NotGiven as refused:
        reason = str(refused)
    if ctx.facts.disk_here:
        async with small_disk(ctx.directory) as disk, ctx.pool(base_dir=str(disk)) as pool, pool.slot() as slot:
            await _fill(ctx, slot, slot.workspace)
        return
    if not ctx.facts.own_pids:
        raise NotGiven(f"not fired: {reason}")
    async with ctx.pool() as pool, pool.slot() as slot:
        await _fill(ctx, slot, "/dev/shm")


async def _fill(ctx: Context, slot: Slot, directory: str) -> None:
    old, filler = f"{directory}/old-{ctx.mark}", f"{directory}/fill-{ctx.mark}"
    try:
        await slot.files.write_text(old, "old")
    except OSError as error:
        raise NotGiven(f"not fired: {directory} cannot be written: {error}") from error
    argv = await ctx.argv("echo", "usable", slot=slot)
    try:
        filled = (await ctx.applet("fill", filler, 300, slot=slot, timeout_s=60)).stdout.strip()
        if filled == "ok":
            raise NotGiven(f"not fired: {directory} took 300 MiB, so it is no small file system")
        that(filled in {"ENOSPC", "EDQUOT"}, f"what stopped the filling: {filled}")
        with raises(OSError) as caught:
            await slot.files.write_bytes(old, b"n" * (4 << 20))
        that(getattr(caught.error, "errno", 0) in {28, 122}, f"{caught.error!r} is not ENOSPC")
        equal(await slot.files.read_text(old), "old", "the old file")
        equal((await slot.run(argv)).stdout, "usable\n", "a command meanwhile")
    finally:
        await slot.files.remove(filler, missing_ok=True)
        await slot.files.remove(old, missing_ok=True)


@check("faults", "helper", "picklable-factory", "outside-view", own_pool=True, timeout_s=150)
async def check_killed_driver_leaves_nothing(ctx: Context) -> None:
    """When the driver is killed with SIGKILL, everything in its sandboxes ends by itself within the lease."""
    stderr_path = ctx.directory / "stderr"
    with stderr_path.open("wb") as stderr:
        driver = await anyio.open_process([sys.executable, "-c", DRIVER], stderr=stderr)
    try:
        if driver.stdin is None:
            raise AssertionError("no stdin of the second driver")
        await driver.stdin.send(pickle.dumps((ctx.factory, ctx.mark)))
        await driver.stdin.aclose()
        try:
            await ctx.expect_alive(9, within_s=80)
        except AssertionError as error:
            raise AssertionError(f"{error}; stderr of the second driver: {stderr_path.read_text()[-1000:]!r}") from None
        driver.send_signal(signal.SIGKILL)
        await driver.wait()
        await ctx.expect_none_left(30)
    finally:
        if driver.returncode is None:
            driver.kill()
        await driver.aclose()


@check("faults", "helper", own_pool=True, alone=True)
async def check_idle_sandbox_outlives_its_lease(ctx: Context) -> None:
    """A driver that is there keeps its sandbox, though it is idle, or busy with itself, for longer than the lease."""
    async with ctx.pool(lease_s=5.0) as pool, pool.slot() as slot:
        process = await ctx.background("sleep", 60, slot=slot)
        time.sleep(7)  # noqa: ASYNC251 - the check is about a blocked event loop
        with raises(TimeoutError):
            await process.wait(0)
        equal((await ctx.applet("echo", "here", slot=slot)).stdout, "here\n", "stdout")


@check("faults", "helper", own_pool=True, alone=True)
async def check_cut_stream_is_resumed(ctx: Context) -> None:
    """A stream that breaks under commands is replaced: each command runs once, and all its output and input arrive."""
    before = open_sockets()
    async with ctx.pool() as pool, pool.slot() as slot:
        await ctx.argv("echo", slot=slot)
        seen = bytearray()
        cuts = 0

        async def note(_stream: str, data: bytes) -> None:
            nonlocal cuts
            seen.extend(data)
            if cuts < len(seen) // 3_000_000:
                cuts += 1
                # The second cut may fall into the time in which the stream is replaced.
                if not break_sockets(open_sockets() - before) and cuts == 1:
                    raise NotGiven("the backend's stream is no socket of this process, so it cannot be broken here")

        result = await ctx.applet("spew", 8_000_000, slot=slot, on_output=note)
        equal((len(seen), result.stdout_total_bytes, cuts), (8_000_000, 8_000_000, 2), "bytes, total, cuts")
        that(bytes(seen) == b"0123456789" * 800_000, "the output differs from the input")

        async def pieces() -> AsyncIterator[bytes]:
            for i in range(40):
                if i in {10, 25}:
                    break_sockets(open_sockets() - before)
                yield b"%07d\n" % i * 8192

        counted = await ctx.applet("count", slot=slot, stdin=pieces())
        equal(counted.stdout, f"{40 * 8192 * 8}\n", "bytes of stdin")
        once = await ctx.argv("append", f"{slot.workspace}/runs", slot=slot)
        for _ in range(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(slot.run, once)
                await anyio.lowlevel.checkpoint()
                break_sockets(open_sockets() - before)
        equal(await slot.files.read_bytes("runs"), b"x" * 5, "one byte for each run")
