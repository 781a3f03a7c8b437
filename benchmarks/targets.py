"""Targets, and whether the measurements reach them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks import (
    acquire,
    agent,
    browser,
    engines,
    environments,
    fork,
    memory,
    model_client,
    sandboxes,
    scale,
    start,
)
from benchmarks.calls import DOCKER, HOST, LOCAL, SANDBOX
from benchmarks.measurements import Measurements, Sample
from benchmarks.options import Options
from benchmarks.transfer import ARCHIVE, STREAM

FEW_DESCRIPTORS = 8
"""A slot needs no descriptor, but the driver may open some for itself meanwhile."""


class NotMeasured(Exception):
    """Raised when this run left out the measurement of a target."""


@dataclass(frozen=True)
class Target:
    """A bound on a number. `measure` returns the number and its derivation."""

    name: str
    bound: float
    unit: str
    measure: Callable[[Measurements], tuple[float, str]]
    least: bool = False

    def row(self, measurements: Measurements) -> tuple[str, str, str, str, str]:
        """Return a line of the table."""
        bound = f"{'≥' if self.least else '≤'} {self.bound:g}{self.unit}"
        try:
            value, note = self.measure(measurements)
        except NotMeasured:
            return self.name, bound, "–", "", "not measured"
        reached = (operator.ge if self.least else operator.le)(value, self.bound)
        return self.name, bound, f"{value:.2f}{self.unit}", note, "yes" if reached else "**no**"


def targets() -> Iterator[Target]:
    """Yield all targets in the order of the report."""
    for name, floors, most in ((LOCAL, HOST, 1.2), (DOCKER, SANDBOX, 1.3)):
        yield _latency_target(f"no-op, {name}", most, ("no-op, 1 at once", name), ("no-op, 1 at once", floors.one))
    for name, floors in ((LOCAL, HOST), (DOCKER, SANDBOX)):
        for at_once in (32, 64):
            yield _rate_target(f"no-op, {at_once} at once, {name}", f"no-op, {at_once} at once", name, floors.many)
    for name, floors in ((LOCAL, HOST), (DOCKER, SANDBOX)):
        for work in ("write 1 KiB", "read 1 KiB"):
            yield _latency_target(f"{work}, {name}", 0.5, (work, name), ("no-op, 1 at once", floors.one))
    for name in (LOCAL, DOCKER):
        for work, most in (("write 1 MiB", 8), ("read 1 MiB", 5), ("10 MiB of output", 75)):
            yield _time_target(f"{work}, {name}", most, work, name)
    size = f"{Options.megabytes} MiB"
    for way in ("up", "down"):
        for base in (STREAM, ARCHIVE):
            work = f"{size} {way}"
            yield Target(f"{work}, of {base}", 0.7, " ×", _measure_throughput(work, DOCKER, base), least=True)
    many = f"{Options.sandboxes} sandboxes, each with its first command"
    yield _latency_target(many, 1.1, (many, sandboxes.OURS), (many, sandboxes.BARE))
    machines = f"{Options.sandboxes} slots with roots of their own, each with its first command"
    yield _latency_target(machines, 0.15, (many, sandboxes.SLOTS), (many, sandboxes.BARE))
    yield _latency_target(sandboxes.FIRST, 1.1, (sandboxes.FIRST, sandboxes.OURS), (sandboxes.FIRST, sandboxes.BARE))
    for name in (LOCAL, DOCKER):
        yield _time_target(f"{acquire.ACQUIRE}, {name}", 1, acquire.ACQUIRE, name)
        yield _time_target(f"{acquire.RESET}, {name}", 20 if name == LOCAL else 25, acquire.RESET, name)
        yield _time_target(f"{acquire.FIRST}, {name}", 12, acquire.FIRST, name)
    yield from _fork_targets()
    for name in (LOCAL, DOCKER):
        more = f"{name}: {scale.more_descriptors(Options.slots)}"
        yield Target(more, FEW_DESCRIPTORS, "", _find_figure(more))
        yield Target(f"{name}: {scale.MEMORY}", 64, " KiB", _find_figure(f"{name}: {scale.MEMORY}"))
        for words in memory.MEMORY_FIELDS.values():
            for label, most in ((memory.RUNNER, 10), (memory.AGENT, 3)):
                yield Target(f"{name}: {label}, {words}", most, " MiB", _find_figure(f"{name}: {label}, {words}"))
    yield from _engine_targets()
    yield from _agent_targets()
    yield from _browser_targets()
    yield from _environment_targets()
    yield _time_target(start.IMPORT, 150, start.DISCIPLINE, start.IMPORT)
    yield _time_target(start.IMPORT_POOL, 200, start.DISCIPLINE, start.IMPORT_POOL)
    yield _time_target(start.RUN, 350, start.DISCIPLINE, start.RUN)


def _fork_targets() -> Iterator[Target]:
    for state in (fork.IMAGE, fork.LAYER):
        ours, base = f"{fork.COPY} {state}", f"{fork.COMMAND} {state}"
        name = f"{fork.CHECKPOINT} {state}, less 5 ms, of an empty command"
        yield _minimum_target(name, 1.5, (fork.CHECKPOINT, ours), (fork.CHECKPOINT, base), less_ms=5)
    for size in (fork.FEW, fork.LARGE):
        yield _minimum_target(f"{fork.FREEZE}, {size}", 1.5, (fork.FREEZE, size), (fork.FREEZE, fork.SMALL))
    for count in fork.COUNTS:
        slots, name = fork.slots_name(count), f"{count} {fork.FORKS}, each with a command"
        yield _minimum_target(name, 1.5, (slots, fork.FORKS), (slots, fork.EMPTY))
        setup = (fork.SETUP, fork.SETUP)
        yield _minimum_target(f"{name}, of {count} set-ups", 0.1, (slots, fork.FORKS), setup, times=count)


def _engine_targets() -> Iterator[Target]:
    bounds = {engines.OPENSSH: (1.7, 0.9), engines.PARAMIKO: (1.7, 0.9), engines.APPTAINER: (1.7, 0.9)}
    for name, (slower, rate) in {**bounds, engines.NOMAD: (2.5, 0.7)}.items():
        yield _latency_target(
            f"engines: no-op, {name}", slower, ("engines: no-op", name), ("engines: no-op", HOST.many)
        )
        yield _rate_target(f"engines: no-op, 32 at once, {name}", "engines: no-op, 32 at once", name, HOST.many, rate)
    many_sandboxes = f"engines: {engines.SANDBOXES} sandboxes, each with its first command, {engines.AT_ONCE} at once"
    yield _latency_target(many_sandboxes, 1.3, (many_sandboxes, engines.APPTAINER), (many_sandboxes, engines.BARE))
    first = f"engines: {engines.FIRST}"
    yield _latency_target(first, 1, (first, engines.APPTAINER), (first, "apptainer instance start"))


def _sample(measurements: Measurements, discipline: str, name: str) -> Sample:
    sample = measurements.sample(discipline, name)
    if sample is None:
        raise NotMeasured
    return sample


def _latency_target(name: str, most: float, ours: tuple[str, str], base: tuple[str, str]) -> Target:
    def measure(measurements: Measurements) -> tuple[float, str]:
        first, second = _sample(measurements, *ours).p50_ms, _sample(measurements, *base).p50_ms
        return first / second, f"{first:,.2f} ms, {base[1]} {second:,.2f} ms"

    return Target(name, most, " ×", measure)


def _minimum_target(
    name: str, most: float, ours: tuple[str, str], base: tuple[str, str], *, times: int = 1, less_ms: float = 0
) -> Target:
    """Return a bound on the ratio of minima. `less_ms` is subtracted from ours, and the base counts `times` times."""

    def measure(measurements: Measurements) -> tuple[float, str]:
        first, second = _sample(measurements, *ours), _sample(measurements, *base)
        medians = max(0.0, first.p50_ms - less_ms) / (second.p50_ms * times)
        note = f"minima {first.min_ms:,.2f} ms, {base[1]} {second.min_ms:,.2f} ms; by medians {medians:.2f} ×"
        return max(0.0, first.min_ms - less_ms) / (second.min_ms * times), note

    return Target(name, most, " ×", measure)


def _rate_target(name: str, discipline: str, ours: str, base: str, least: float = 1) -> Target:
    def measure(measurements: Measurements) -> tuple[float, str]:
        first, second = (_sample(measurements, discipline, each).per_second for each in (ours, base))
        return first / second, f"{first:,.0f} calls/s, {base} {second:,.0f}"

    return Target(name, least, " ×", measure, least=True)


def _measure_throughput(discipline: str, ours: str, base: str) -> Callable[[Measurements], tuple[float, str]]:
    def measure(measurements: Measurements) -> tuple[float, str]:
        first, second = (
            Options.megabytes / _sample(measurements, discipline, each).p50_ms * 1e3 for each in (ours, base)
        )
        return first / second, f"{first:,.0f} MiB/s, {base} {second:,.0f}"

    return measure


def _time_target(name: str, most: float, discipline: str, ours: str) -> Target:
    def measure(measurements: Measurements) -> tuple[float, str]:
        sample = _sample(measurements, discipline, ours)
        return sample.p50_ms, f"p95 {sample.p95_ms:,.2f} ms"

    return Target(name, most, " ms", measure)


def _agent_targets() -> Iterator[Target]:
    bounds = (
        (agent.CPU, 6, " ms"),
        (agent.MEMORY, 1024, " KiB"),
        (agent.LOST_EPISODES, 0, ""),
        (agent.REQUESTS, 1.05, " ×"),
    )
    for label, most, unit in bounds:
        yield Target(f"agent: {label}", most, unit, _find_figure(f"agent: {label}"))
    for label, most in (
        (f"{model_client.ONE}, {model_client.POST}", 0.6),
        (f"{model_client.ONE}, {model_client.COMPLETE}", 0.9),
        (f"{model_client.CHUNK}, {model_client.POST}", 0.1),
    ):
        yield Target(f"model client: {label}", most, " ms", _find_figure(f"model client: {label}"))


def _browser_targets() -> Iterator[Target]:
    bounds = (
        (f"{browser.LAUNCH}, ratio to the host", 1.3, " ×"),
        (f"{browser.CLIENT_CLICK}, difference from the host", 8, " ms"),
        # Two more round trips: check the reference of the element, and wait for the effects of the click.
        (f"{browser.ACTION}, difference from the host", 13, " ms"),
        (browser.CALLBACK, 2, " ms"),
    )
    for label, most, unit in bounds:
        yield Target(f"browser: {label}", most, unit, _find_figure(f"browser: {label}"))


def _environment_targets() -> Iterator[Target]:
    bounds = ((environments.CPU, 6, " ms"), (environments.MEMORY, 1536, " MiB"), (environments.RELEASE, 2, " s"))
    for label, most, unit in bounds:
        yield Target(f"environments: {label}", most, unit, _find_figure(f"environments: {label}"))


def _find_figure(name: str) -> Callable[[Measurements], tuple[float, str]]:
    def measure(measurements: Measurements) -> tuple[float, str]:
        if name not in measurements.figures:
            raise NotMeasured
        return measurements.figures[name].value, ""

    return measure
