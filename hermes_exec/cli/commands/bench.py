"""`hermes-exec bench`: the cost of calls on a backend here: latency, throughput, files, output."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import emit_json, say, table
from hermes_exec.cli.kit.pools import AsJson, Backend, Config, Image, Options, Profile, make_pool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hermes_exec.pool.pool import SandboxPool
    from hermes_exec.slot.slot import Slot

    Call = Callable[[Slot], Awaitable[object]]


@dataclass(frozen=True)
class Figure:
    """One measurement: milliseconds per call, and calls per second of all workers."""

    name: str
    at_once: int
    calls: int
    p50_ms: float
    p95_ms: float
    per_second: float


def bench(
    backend: Backend = None,
    image: Image = None,
    config: Config = None,
    profile: Profile = None,
    option: Options = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, max=60, help="Time for each measurement.")] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Measure a backend for some seconds: a command that does nothing (1, 8 and 64 at once), files, and much output."""
    pool = make_pool(backend, image, config, profile, option)
    raise typer.Exit(run_async(lambda: _bench(pool, seconds, as_json)))


async def _bench(pool: SandboxPool, seconds: float, as_json: bool) -> int:
    begin = time.perf_counter()
    async with pool, pool.slot() as slot:
        first_ms = (time.perf_counter() - begin) * 1000
        small, large = b"x" * 1024, b"x" * (1 << 20)
        await slot.files.write_bytes("small", small)
        await slot.files.write_bytes("large", large)
        plan: list[tuple[str, int, Call]] = [
            ("run true", 1, lambda s: s.run("true")),
            ("run true", 8, lambda s: s.run("true")),
            ("run true", 64, lambda s: s.run("true")),
            ("write 1 KiB", 1, lambda s: s.files.write_bytes("w", small)),
            ("read 1 KiB", 1, lambda s: s.files.read_bytes("small")),
            ("write 1 MiB", 1, lambda s: s.files.write_bytes("w", large)),
            ("read 1 MiB", 1, lambda s: s.files.read_bytes("large")),
            ("10 MiB of output", 1, lambda s: s.run("head -c 10485760 /dev/zero", output_limit_bytes=12 << 20)),
        ]
        figures = []
        for name, at_once, call in plan:
            if not as_json:
                say(f"measuring: {name}, {at_once} at once")
            figures.append(await measure(name, slot, call, at_once, seconds))
        level = slot.isolation.level
    if as_json:
        emit_json({"isolation": level, "first_slot_ms": first_ms, "figures": figures})
        return exits.OK
    rows = [(f.name, f.at_once, f.calls, f"{f.p50_ms:.2f}", f"{f.p95_ms:.2f}", f"{f.per_second:.0f}") for f in figures]
    table(("what", "at once", "calls", "p50 ms", "p95 ms", "calls/s"), rows)
    say(f"first slot after {first_ms:.0f} ms, isolation {level}")
    return exits.OK


async def measure(name: str, slot: Slot, call: Call, at_once: int, seconds: float) -> Figure:
    """Repeat a call for `seconds` with `at_once` in flight, and return its figures.

    Each worker makes at least one call; a first call is not counted.
    """
    await call(slot)
    times: list[float] = []
    begin = time.perf_counter()

    async def repeat() -> None:
        while True:
            start = time.perf_counter()
            await call(slot)
            times.append((time.perf_counter() - start) * 1000)
            if time.perf_counter() - begin >= seconds:
                return

    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(repeat)
    elapsed = time.perf_counter() - begin
    p95 = statistics.quantiles(times, n=20)[-1] if len(times) > 1 else times[0]
    return Figure(name, at_once, len(times), statistics.median(times), p95, len(times) / elapsed)


def add_to(app: typer.Typer) -> None:
    """Add the command `bench`."""
    app.command(epilog="Example: hermes-exec bench --backend docker --image debian:12 --seconds 1")(bench)
