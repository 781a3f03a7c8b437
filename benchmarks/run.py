"""Runs all contenders interleaved, so that what the machine does hits all of them: `python -m benchmarks.run`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks import bare, docker_exec, ours, start, swe_rex
from benchmarks.contender import LARGE, SMALL, Contender, ContenderMissing, Entry, Sample, SelfTimed, Unsupported
from benchmarks.report import write_report

HOST, IN_BOX = "asyncio subprocess, host", "fork+exec in the container"
ENTRIES = (
    Entry("subprocess.run, host", HOST, bare.open_subprocess),
    Entry(HOST, HOST, bare.open_asyncio),
    Entry("hermes-exec, local", HOST, ours.open_local),
    Entry(IN_BOX, IN_BOX, bare.open_floor),
    Entry("hermes-exec, Docker", IN_BOX, ours.open_docker),
    Entry("SWE-ReX, Docker", IN_BOX, swe_rex.open_swe_rex),
    Entry("docker exec, SDK", IN_BOX, docker_exec.open_sdk),
    Entry("docker exec, CLI", IN_BOX, docker_exec.open_cli),
)
NOOP = "no-op"
DISCIPLINES: dict[str, tuple[int, Callable[[Contender], Awaitable[None]]]] = {
    f"{NOOP}, 1 at once": (1, lambda c: c.noop()),
    f"{NOOP}, 8 at once": (8, lambda c: c.noop()),
    f"{NOOP}, 64 at once": (64, lambda c: c.noop()),
    "write 1 KiB": (1, lambda c: c.write(SMALL)),
    "read 1 KiB": (1, lambda c: c.read(SMALL)),
    "write 1 MiB": (1, lambda c: c.write(LARGE)),
    "read 1 MiB": (1, lambda c: c.read(LARGE)),
    "10 MiB of output": (1, lambda c: c.output()),
}
Samples = dict[str, dict[str, Sample]]


async def measure(rounds: int, slice_s: float) -> Samples:
    """Run every discipline in rounds, in each of them all contenders one after the other."""
    samples: Samples = {discipline: {} for discipline in DISCIPLINES}
    async with AsyncExitStack() as stack:
        opened: dict[str, Contender | SelfTimed] = {}
        for entry in ENTRIES:
            try:
                opened[entry.name] = await stack.enter_async_context(entry.open())
            except ContenderMissing as error:
                print(f"{entry.name} is left out: {error}", file=sys.stderr)
        for discipline, (at_once, call) in DISCIPLINES.items():
            for number in range(rounds + 1):
                print(f"\r{discipline}: round {number} of {rounds}   ", end="", file=sys.stderr, flush=True)
                for name, contender in opened.items():
                    sample = samples[discipline].setdefault(name, Sample())
                    # The first round warms up and is not counted.
                    await one_slice(sample if number else Sample(), contender, discipline, at_once, call, slice_s)
        print(file=sys.stderr)
    return samples


async def one_slice(
    sample: Sample,
    contender: Contender | SelfTimed,
    discipline: str,
    at_once: int,
    call: Callable[[Contender], Awaitable[None]],
    slice_s: float,
) -> None:
    """Keep `at_once` calls of one contender in flight for a slice of time."""
    if hasattr(contender, "timed_noops"):
        if discipline.startswith(NOOP):
            sample.add(*await contender.timed_noops(slice_s, at_once))
        return
    if at_once > 1 and getattr(contender, "blocking", False):
        return
    times: list[float] = []
    begin = time.perf_counter()

    async def repeat() -> None:
        while not times or time.perf_counter() - begin < slice_s:
            start = time.perf_counter()
            await call(contender)
            times.append(time.perf_counter() - start)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(repeat())
    except* Unsupported:
        times.clear()
    if not times:
        return
    sample.add(times, time.perf_counter() - begin)


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slice-s", type=float, default=0.4, help="time of one contender in one round")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    options = parser.parse_args()
    begin = time.perf_counter()
    samples = asyncio.run(measure(options.rounds, options.slice_s))
    samples[start.DISCIPLINE] = start.measure(2 * options.rounds)
    print(write_report(options.out, (*ENTRIES, *start.STARTS), samples, time.perf_counter() - begin))
    return 0


if __name__ == "__main__":
    sys.exit(main())
