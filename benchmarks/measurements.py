"""Measurements: samples by discipline and contender, single figures, and curves."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import anyio

Kind = Literal["calls", "times", "bytes"]


@dataclass
class Sample:
    """The measurements of one contender in one discipline. Times are in milliseconds."""

    times_ms: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0

    def add(self, times_s: list[float], elapsed_s: float) -> None:
        """Add one slice of the run."""
        self.times_ms += [time * 1000 for time in times_s]
        self.elapsed_s += elapsed_s

    def add_one(self, duration_s: float) -> None:
        """Add one call."""
        self.add([duration_s], duration_s)

    @property
    def min_ms(self) -> float:
        """The minimum."""
        return min(self.times_ms)

    @property
    def p50_ms(self) -> float:
        """The median."""
        return statistics.median(self.times_ms)

    @property
    def p95_ms(self) -> float:
        """The 95th percentile."""
        if len(self.times_ms) == 1:
            return self.times_ms[0]
        return statistics.quantiles(self.times_ms, n=20, method="inclusive")[-1]

    @property
    def per_second(self) -> float:
        """The calls per second over the whole time."""
        return len(self.times_ms) / self.elapsed_s


@dataclass
class Discipline:
    """A task of all contenders. `bases` maps the name of a contender to the name of its reference."""

    name: str
    kind: Kind
    bases: Mapping[str, str]
    size_bytes: int = 0
    samples: dict[str, Sample] = field(default_factory=dict)

    def sample(self, contender: str) -> Sample:
        """Return the sample of a contender, created at its first use."""
        return self.samples.setdefault(contender, Sample())

    def nonempty_samples(self) -> dict[str, Sample]:
        """Return the samples that are not empty."""
        return {name: sample for name, sample in self.samples.items() if sample.times_ms}


class Figure(NamedTuple):
    """A single number."""

    value: float
    unit: str


class Point(NamedTuple):
    """One point of a curve."""

    x: int
    p50_ms: float
    p95_ms: float
    per_second: float


@dataclass
class Curves:
    """Latency and throughput over a number; `file` is the name of the chart."""

    title: str
    x_label: str
    file: str
    lines: dict[str, list[Point]] = field(default_factory=dict)


@dataclass
class Measurements:
    """The measurements of one part of the benchmark."""

    disciplines: list[Discipline] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    curves: list[Curves] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def leave_out(self, name: str, reason: object) -> None:
        """Continue without a contender, and report it."""
        line = f"{name}: {' '.join(str(reason).split())}"
        if line not in self.left_out:
            self.left_out.append(line)
            print(f"\nleft out: {line}", file=sys.stderr)

    def sample(self, discipline: str, contender: str) -> Sample | None:
        """Return the sample of a contender in a discipline, or None."""
        samples = (each.nonempty_samples().get(contender) for each in self.disciplines if each.name == discipline)
        return next(samples, None)

    def join(self, other: Measurements) -> None:
        """Add the measurements of another part."""
        self.disciplines += other.disciplines
        self.figures |= other.figures
        self.curves += other.curves
        self.left_out += other.left_out


def progress(text: str) -> None:
    """Print the progress on one line."""
    print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


async def keep_in_flight(
    call: Callable[[], Awaitable[object]], at_once: int, seconds: float
) -> tuple[list[float], float]:
    """Keep `at_once` calls running for some time. Return the seconds of each call and of all together."""
    times: list[float] = []
    begin = time.perf_counter()

    async def repeat() -> None:
        while True:
            start = time.perf_counter()
            await call()
            end = time.perf_counter()
            times.append(end - start)
            if end - begin >= seconds:
                return

    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(repeat)
    return times, time.perf_counter() - begin
