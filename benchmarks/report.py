"""The report: RESULTS.md and its charts."""

from __future__ import annotations

import os
import platform
import textwrap
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import chart
from benchmarks.machine_load import LoadSample, describe_load
from benchmarks.measurements import Curves, Discipline, Figure, Measurements
from benchmarks.targets import targets

LATENCY, THROUGHPUT = "no-op, 1 at once", "no-op, 64 at once"
HEAD = """# Results

`make bench` writes this page. All contenders took turns in one run of {elapsed:.1f} minutes, so each of them had the
same machine: {machine}.
{quiet}

- A no-op is `bash -c true`. p50 and p95 are over all calls.
- "× floor" is the ratio to the cost of Python itself at the same place (host or container). With one call at a time,
  this is a bare `subprocess.run(["bash", "-c", "true"])` without captured output. With more calls, it is asyncio's
  subprocesses.
- Inside of the container, a program measures its own subprocesses, so no channel into the container can be faster.
  A loop of fork and exec in Go is the stricter floor.
- All contenders have the locale of a slot (`LANG=C.UTF-8`).
- A loop keeps the processors awake and their caches warm. "Rested" pauses for half a millisecond between two calls, as
  in a sandbox with calls from outside.
- A naive worker is a Python program behind one stream, with a line of JSON for each request and 64 threads that call
  `subprocess.run`.
"""


def write_report(directory: Path, measurements: Measurements, loads: list[LoadSample], elapsed_s: float) -> str:
    """Write all files and return the table of targets for the terminal."""
    directory.mkdir(parents=True, exist_ok=True)
    summary = table(
        ("target", "bound", "measured", "compared", "reached"),
        "lrrll",
        (target.row(measurements) for target in targets()),
    )
    load_note = textwrap.fill(describe_load(loads), 118)
    parts = [HEAD.format(machine=machine(), elapsed=elapsed_s / 60, quiet=load_note), "## Targets\n", summary]
    if measurements.left_out:
        parts += ["Left out:\n", *(f"- {line}" for line in measurements.left_out), ""]
    panels = [panel for discipline in measurements.disciplines if (panel := _panel(discipline))]
    if panels:
        (directory / "chart.svg").write_text(chart.bars(panels))
        parts.append("![no-op latency and throughput](chart.svg)\n")
    for curves in measurements.curves:
        if curves.lines:
            (directory / curves.file).write_text(chart.curves(curves))
            parts += [f"## {curves.title}\n", f"![{curves.title}]({curves.file})\n", _points(curves)]
    for discipline in measurements.disciplines:
        if discipline.nonempty_samples():
            parts += [f"## {discipline.name}\n", _calls(discipline)]
    if measurements.figures:
        parts += ["## Memory, descriptors and processor time\n", _figures(measurements.figures)]
    (directory / "RESULTS.md").write_text("\n".join(parts))
    return summary


def _panel(discipline: Discipline) -> tuple[str, str, dict[str, float]] | None:
    samples = discipline.nonempty_samples()
    if discipline.name == LATENCY and samples:
        values = {name: sample.p50_ms for name, sample in samples.items()}
        return "no-op, milliseconds (p50), shorter is better", "{:.2f}", values
    if discipline.name == THROUGHPUT and samples:
        values = {name: sample.per_second for name, sample in samples.items()}
        return "no-op, 64 at once, calls a second, longer is better", "{:,.0f}", values
    return None


def machine() -> str:
    """Return the hardware and the versions of the packages, without the name of the machine."""
    facts = [
        f"{os.cpu_count()} cores",
        f"{platform.system()} {platform.machine()}",
        f"Python {platform.python_version()}",
    ]
    for package in ("hermes-exec", "swe-rex", "docker"):
        try:
            facts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join([*facts, datetime.now(UTC).date().isoformat()])


def table(head: tuple[str, ...], sides: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown; `sides` has the alignment of each column, `l` or `r`."""
    lines = [head, tuple("---:" if side == "r" else "---" for side in sides), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _calls(discipline: Discipline) -> str:
    samples = discipline.nonempty_samples()
    rows: list[tuple[str, ...]] = []
    for name, sample in samples.items():
        base = samples.get(discipline.bases.get(name, ""))
        slower = f"{sample.p50_ms / base.p50_ms:.2f}" if base else "–"
        faster = f"{sample.per_second / base.per_second:.2f}" if base else "–"
        times, count = (f"{sample.p50_ms:,.2f}", f"{sample.p95_ms:,.2f}"), f"{len(sample.times_ms):,}"
        if discipline.kind == "calls":
            rows.append((name, *times, slower, f"{sample.per_second:,.0f}", faster, count))
        elif discipline.kind == "bytes":
            speed = discipline.size_bytes / (1 << 20) / sample.p50_ms * 1e3
            ratio = f"{base.p50_ms / sample.p50_ms:.2f}" if base else "–"
            rows.append((name, *times, f"{speed:,.0f}", ratio, count))
        else:
            rows.append((name, *times, slower, count))
    heads = {
        "calls": ("contender", "p50 ms", "p95 ms", "× floor", "calls/s", "× floor", "calls"),
        "bytes": ("contender", "p50 ms", "p95 ms", "MiB/s", "× base", "times"),
        "times": ("contender", "p50 ms", "p95 ms", "× base", "times"),
    }
    head = heads[discipline.kind]
    return table(head, "l" + "r" * (len(head) - 1), rows)


def _points(curves: Curves) -> str:
    numbers = sorted({point.x for line in curves.lines.values() for point in line})
    rows = []
    for number in numbers:
        row = [f"{number:,}"]
        for line in curves.lines.values():
            here = next((point for point in line if point.x == number), None)
            row.append(f"{here.p50_ms:,.2f} / {here.p95_ms:,.2f} / {here.per_second:,.0f}" if here else "–")
        rows.append(tuple(row))
    text = "p50 ms / p95 ms / calls per second:\n\n"
    return text + table((curves.x_label, *curves.lines), "r" * (len(curves.lines) + 1), rows)


def _figures(figures: dict[str, Figure]) -> str:
    rows = [
        (name, f"{value:,.2f}".removesuffix(".00") + (f" {unit}" if unit else ""))
        for name, (value, unit) in figures.items()
    ]
    return table(("figure", "measured"), "lr", rows)
