"""Calls of all contenders, interleaved in rounds, so that other load on the machine affects all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

from benchmarks import container_floors, docker_exec, hermes, host_subprocess, naive_client, swe_rex
from benchmarks.contender import (
    LARGE,
    SMALL,
    Contender,
    ContenderMissing,
    Entry,
    Floors,
    SelfTimed,
    Unsupported,
)
from benchmarks.measurements import Discipline, Measurements, Sample, keep_in_flight, progress
from benchmarks.options import Options

HOST = Floors("subprocess.run, host", "asyncio subprocess, host")
SANDBOX = Floors("subprocess.run, in the container", "asyncio subprocess, in the container")
LOCAL, DOCKER = "hermes-exec, local", "hermes-exec, Docker"
ENTRIES = (
    Entry(HOST.one, HOST, host_subprocess.open_subprocess),
    Entry("subprocess.run with pipes, host", HOST, host_subprocess.open_capturing),
    Entry(HOST.many, HOST, host_subprocess.open_asyncio),
    Entry("naive worker, pipe on the host", HOST, naive_client.open_local),
    Entry(LOCAL, HOST, hermes.open_local),
    Entry("fork+exec in Go, in the container", SANDBOX, container_floors.open_go),
    Entry(SANDBOX.one, SANDBOX, container_floors.open_subprocess),
    Entry(f"{SANDBOX.one}, rested", SANDBOX, container_floors.open_resting),
    Entry(SANDBOX.many, SANDBOX, container_floors.open_asyncio),
    Entry("naive worker, one docker exec", SANDBOX, naive_client.open_docker),
    Entry(DOCKER, SANDBOX, hermes.open_docker),
    Entry("SWE-ReX, Docker", SANDBOX, swe_rex.open_swe_rex),
    Entry("docker exec, SDK", SANDBOX, docker_exec.open_sdk),
    Entry("docker exec, CLI", SANDBOX, docker_exec.open_cli),
)


class Work(NamedTuple):
    """A type of call, and how many run at once. The floors in the container run empty commands only."""

    name: str
    at_once: int
    call: Callable[[Contender], Awaitable[None]]
    empty: bool = False


def noop_work(at_once: int) -> Work:
    """Return empty commands, `at_once` at a time."""
    return Work(f"no-op, {at_once} at once", at_once, lambda c: c.noop(), empty=True)


WORK = (
    noop_work(1),
    noop_work(8),
    noop_work(32),
    noop_work(64),
    Work("write 1 KiB", 1, lambda c: c.write(SMALL)),
    Work("read 1 KiB", 1, lambda c: c.read(SMALL)),
    Work("write 1 MiB", 1, lambda c: c.write(LARGE)),
    Work("read 1 MiB", 1, lambda c: c.read(LARGE)),
    Work("10 MiB of output", 1, lambda c: c.output()),
)


async def measure(options: Options) -> Measurements:
    """Do all work in rounds. In each round, all contenders run one after the other."""
    measurements = Measurements()
    async with AsyncExitStack() as stack:
        opened = await open_contenders(stack, ENTRIES, measurements)
        for work in WORK:
            bases = {e.name: e.floors.one if work.empty and work.at_once == 1 else e.floors.many for e in ENTRIES}
            discipline = Discipline(work.name, "calls", bases)
            measurements.disciplines.append(discipline)
            for number in range(options.rounds + 1):
                progress(f"{work.name}: round {number} of {options.rounds}")
                for name, contender in list(opened.items()):
                    # The first round warms up and is not counted.
                    sample = discipline.sample(name) if number else Sample()
                    try:
                        await run_slice(sample, contender, work, options.slice_s)
                    except* Unsupported:
                        pass
                    except* Exception as errors:  # noqa: BLE001 - reported, and the others continue
                        measurements.leave_out(f"{name}, from '{work.name}' on", errors.exceptions[0])
                        del opened[name]
    return measurements


async def open_contenders(
    stack: AsyncExitStack, entries: tuple[Entry, ...], measurements: Measurements
) -> dict[str, Contender | SelfTimed]:
    """Open the contenders that can take part here."""
    opened: dict[str, Contender | SelfTimed] = {}
    for entry in entries:
        progress(f"opening {entry.name}")
        try:
            opened[entry.name] = await stack.enter_async_context(entry.open())
        except ContenderMissing as error:
            measurements.leave_out(entry.name, error)
    return opened


async def run_slice(sample: Sample, contender: Contender | SelfTimed, work: Work, slice_s: float) -> None:
    """Keep calls of one contender in flight for a slice of time."""
    if work.at_once > 1 and getattr(contender, "blocking", False):
        return
    if hasattr(contender, "time_noops"):
        if work.empty:
            sample.add(*await contender.time_noops(slice_s, work.at_once))
        return
    sample.add(*await keep_in_flight(lambda: work.call(contender), work.at_once, slice_s))
