"""Latency and throughput of empty commands by the number of calls at once, on one slot."""

from __future__ import annotations

from contextlib import AsyncExitStack

from benchmarks.calls import DOCKER, ENTRIES, HOST, LOCAL, SANDBOX, noop_work, open_contenders, run_slice
from benchmarks.measurements import Curves, Measurements, Point, Sample, progress
from benchmarks.options import Options

AT_ONCE = tuple(2**power for power in range(10))
CONTENDERS = (HOST.many, LOCAL, SANDBOX.many, DOCKER)
ROUNDS = 2


async def measure(options: Options) -> Measurements:
    """Measure each number of calls in rounds. In each round, all contenders run one after the other."""
    measurements = Measurements()
    curves = Curves("Empty commands by the number of calls at once", "calls at once", "concurrency.svg")
    measurements.curves.append(curves)
    async with AsyncExitStack() as stack:
        opened = await open_contenders(
            stack, tuple(entry for entry in ENTRIES if entry.name in CONTENDERS), measurements
        )
        for contender in opened.values():
            await run_slice(Sample(), contender, noop_work(8), options.slice_s)
        for at_once in AT_ONCE:
            samples = {name: Sample() for name in opened}
            for number in range(min(ROUNDS, options.rounds)):
                progress(f"{at_once} calls at once: round {number + 1}")
                for name, contender in opened.items():
                    await run_slice(samples[name], contender, noop_work(at_once), options.slice_s)
            for name, sample in samples.items():
                point = Point(at_once, sample.p50_ms, sample.p95_ms, sample.per_second)
                curves.lines.setdefault(name, []).append(point)
    return measurements
