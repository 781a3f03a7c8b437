"""stdin, output limits, streaming."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel

from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.expect import equal, that
from hermes_exec.testing.conformance.registry import check

DIGITS = b"0123456789"


@check("stdin", "helper")
async def check_text_on_stdin(ctx: Context) -> None:
    """Text on stdin arrives and ends; empty text is an end at once."""
    for text in ("hello\nworld\n", ""):
        result = await ctx.applet("cat", stdin=text)
        equal((result.stdout, result.exit_code), (text, 0), "result")


@check("stdin", "helper")
async def check_stdin_is_never_interpreted(ctx: Context) -> None:
    """Quotes, dollar signs and backslashes on stdin arrive as they are."""
    text = "$HOME `whoami` 'single' \"double\" \\backslash\nnewline\nEOF\n"
    equal((await ctx.applet("cat", stdin=text)).stdout, text, "stdout")


@check("stdin", "helper")
async def check_bytes_on_stdin(ctx: Context) -> None:
    """Every byte value arrives on stdin."""
    data = b"\xc3\x28\x00\xff\x01" + bytes(range(256)) * 50
    equal((await ctx.applet("cat", stdin=data)).stdout_bytes, data, "bytes")


@check("stdin", "helper", alone=True)
async def check_fifty_mebibytes_on_stdin(ctx: Context) -> None:
    """50 MiB on stdin arrive whole."""
    data = DIGITS * (5 << 20)
    result = await ctx.applet("sum", stdin=data)
    equal(result.stdout.strip(), hashlib.sha256(data).hexdigest(), "checksum")


@check("stdin", "helper")
async def check_stdin_from_an_iterable(ctx: Context) -> None:
    """Stdin may be an async iterable of bytes, sent as it comes."""

    async def pieces() -> AsyncIterator[bytes]:
        for i in range(50):
            await anyio.lowlevel.checkpoint()
            yield f"{i}\n".encode()

    result = await ctx.applet("cat", stdin=pieces())
    equal(result.stdout.split(), [str(i) for i in range(50)], "stdout")


@check("stdin", "helper")
async def check_no_stdin_is_an_end(ctx: Context) -> None:
    """Without stdin a program that reads it meets the end at once."""
    started = time.monotonic()
    equal((await ctx.applet("count")).stdout, "0\n", "bytes")
    that(time.monotonic() - started < 20, "it waited")


@check("stdin", "helper")
async def check_stdin_that_nobody_reads(ctx: Context) -> None:
    """A program that ends without reading 8 MiB of stdin does not fail the call, nor hold it."""
    result = await ctx.applet("exit", 4, stdin=b"x" * (8 << 20))
    equal(result.exit_code, 4, "exit code")
    slow = await ctx.applet("sleep", 0.3, stdin=b"x" * (8 << 20), timeout_s=20)
    equal((slow.exit_code, slow.timed_out), (0, False), "a program that never reads")


@check("output", "helper")
async def check_output_over_the_limit(ctx: Context) -> None:
    """Over output_limit_bytes head and tail are kept, the counts are exact, and the text holds one line at the cut."""
    total, limit = 3_000_000, 10_000
    result = await ctx.applet("spew", total, output_limit_bytes=limit)
    equal(
        (result.stdout_total_bytes, result.truncated, result.exit_code), (total, True, 0), "total, truncated, exit code"
    )
    kept = result.stdout_bytes
    that(limit // 2 <= len(kept) <= limit, f"{len(kept)} bytes kept")
    head = next((i for i in range(len(kept)) if kept[i] != DIGITS[i % 10]), len(kept))
    that(limit * 0.3 <= head, f"the head has {head} bytes")
    equal(kept[-10:], DIGITS, "the last bytes")
    that(len(result.stdout.splitlines()) >= 2, "no line at the cut")


@check("output", "helper")
async def check_output_at_the_limit_is_whole(ctx: Context) -> None:
    """Output of exactly output_limit_bytes is whole and not called truncated; one byte more is."""
    whole = await ctx.applet("spew", 10_000, output_limit_bytes=10_000)
    equal((len(whole.stdout_bytes), whole.truncated), (10_000, False), "at the limit")
    over = await ctx.applet("spew", 10_001, output_limit_bytes=10_000)
    equal((over.stdout_total_bytes, over.truncated), (10_001, True), "one more")


@check("output", "helper")
async def check_spill_file_has_it_all(ctx: Context) -> None:
    """Over the limit the whole stream is in a file of the slot."""
    result = await ctx.applet("spew", 2_000_000, output_limit_bytes=1000)
    that(result.spill_path, "no spill_path")
    equal(await ctx.slot.files.read_bytes(str(result.spill_path)), DIGITS * 200_000, "the spill file")


@check("output", "helper")
async def check_streams_are_limited_apart(ctx: Context) -> None:
    """A flood on stderr takes nothing from stdout."""
    result = await ctx.applet("spew", 500_000, "err", output_limit_bytes=2000)
    equal((result.stdout_total_bytes, result.stderr_total_bytes, result.truncated), (0, 500_000, True), "counts")
    that(len(result.stderr_bytes) <= 2000, f"{len(result.stderr_bytes)} bytes of stderr kept")


@check("output", "helper")
async def check_merged_output_keeps_the_order(ctx: Context) -> None:
    """With merge_stderr both streams are one, in the exact order of writing."""
    result = await ctx.applet("alternate", 200, 0, merge_stderr=True)
    wanted = "".join(f"out {i}\nerr {i}\n" for i in range(200))
    equal((result.output, result.stderr), (wanted, ""), "output, stderr")


@check("output", "helper")
async def check_output_tells_arrival_order(ctx: Context) -> None:
    """`output` has both streams in order of arrival, as far as two pipes preserve it."""
    wanted = [f"{s} {i}" for i in range(5) for s in ("out", "err")]
    result = await ctx.applet("alternate", 5, 0.05)
    if result.output.splitlines() != wanted:  # output that nobody has read yet has no order
        result = await ctx.applet("alternate", 5, 0.5)
    equal(result.output.splitlines(), wanted, "output")
    equal((result.stdout.count("out"), result.stderr.count("err")), (5, 5), "each stream")


@check("output", "helper")
async def check_output_streams_while_it_runs(ctx: Context) -> None:
    """on_output is called as output comes, before the command ends, with every byte in order."""
    lines = [b"out %d\n" % i for i in range(4)]
    seen = bytearray()

    def note(stream: str, data: bytes) -> None:
        equal(stream, "stdout", "stream")
        seen.extend(data)

    async def each_after_the_one_before() -> AsyncIterator[bytes]:
        sent = 0
        for line in lines:
            yield line
            sent += len(line)
            while len(seen) < sent:  # noqa: ASYNC110 - one event a line would be more
                await anyio.sleep(0.01)

    with anyio.move_on_after(30) as scope:
        await ctx.applet("cat", stdin=each_after_the_one_before(), on_output=note)
    equal(bytes(seen), b"".join(lines), "stdout")
    that(not scope.cancelled_caught, "the first output came only at the end")


@check("output", "helper")
async def check_async_output_callback(ctx: Context) -> None:
    """on_output may be async; a slow one slows the command and loses nothing."""
    size = 0

    async def note(_stream: str, data: bytes) -> None:
        nonlocal size
        size += len(data)
        await anyio.sleep(0.001)

    await ctx.applet("spew", 4_000_000, on_output=note)
    equal(size, 4_000_000, "bytes")


@check("output", "helper", alone=True)
async def check_flood_does_not_delay_others(ctx: Context) -> None:
    """While one command pours out output, another one of the same slot answers."""
    argv = await ctx.argv("echo", "quick")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: ctx.applet("spew", 10**15))
        await anyio.sleep(0.1)
        started = time.monotonic()
        equal((await ctx.slot.run(argv)).stdout, "quick\n", "stdout")
        that(time.monotonic() - started < 30, f"it took {time.monotonic() - started:.1f} s")
        tasks.cancel_scope.cancel()


@check("output", "helper")
async def check_child_that_keeps_stdout_open(ctx: Context) -> None:
    """A call returns when the command ends, though a child of it still holds stdout."""
    started = time.monotonic()
    result = await ctx.applet("leave", 120, ctx.mark)
    that(time.monotonic() - started < 10, "it waited for the child")
    that(result.stdout.strip().isdigit(), f"stdout {result.stdout!r}")
    await ctx.expect_alive(1)
    await ctx.slot.kill_all()
    await ctx.expect_none_left()


@check("output", "shell")
async def check_server_in_the_background_of_a_command(ctx: Context) -> None:
    """`server &` returns at once, and the server lives on until reset."""
    started = time.monotonic()
    result = await ctx.slot.run(f"sleep 300 & echo $! > pid; echo started # {ctx.mark}")
    equal(result.stdout, "started\n", "stdout")
    that(time.monotonic() - started < 10, "it waited for the server")
    pid = (await ctx.slot.files.read_text("pid")).strip()
    equal((await ctx.slot.run(f"kill -0 {pid}")).exit_code, 0, "the server is alive")


@check("output", "helper")
async def check_output_of_no_bytes(ctx: Context) -> None:
    """A command that prints nothing has empty output, which is not truncated."""
    result = await ctx.applet("exit", 0)
    equal(
        (result.stdout, result.stderr, result.output, result.truncated, result.spill_path),
        ("", "", "", False, None),
        "result",
    )
