"""Writes RESULTS.md and chart.svg."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.metadata import PackageNotFoundError, version
from math import log10
from pathlib import Path

from benchmarks.contender import Entry, Sample
from benchmarks.start import Start

COLOURS = {"hermes-exec": "#2f6f4f", "host": "#8a8f98", "fork": "#8a8f98"}
LATENCY, THROUGHPUT = "no-op, 1 at once", "no-op, 64 at once"


def p95(times: Sequence[float]) -> float:
    """Return the 95th percentile."""
    return statistics.quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]


def write_report(
    folder: Path, entries: Iterable[Entry | Start], samples: dict[str, dict[str, Sample]], elapsed_s: float
) -> str:
    """Write both files and return the table of empty commands for the terminal."""
    entries = list(entries)
    parts = [HEAD.format(machine=machine(), elapsed=elapsed_s / 60)]
    for discipline, measured in samples.items():
        rows = [row for entry in entries if (row := _row(entry, measured))]
        if rows:
            parts += [f"## {discipline}\n", _table(rows), ""]
    text = "\n".join(parts)
    (folder / "RESULTS.md").write_text(text)
    (folder / "chart.svg").write_text(chart(entries, samples))
    return "\n".join(_table([r for e in entries if (r := _row(e, samples[d]))]) for d in (LATENCY, THROUGHPUT))


HEAD = """# Results

Written by `make bench`. All contenders took turns in one run of {elapsed:.1f} minutes, so that each of them had the
same machine: {machine}.

A no-op is `bash -c true`. p50 and p95 are over all calls; a ratio is to the floor of the same place: asyncio's own
subprocesses on the host, and a loop of fork and exec inside the container, which no channel into it can beat (times:
lower is better; calls a second: higher is better). The start of a process is compared with `python -c pass`.

![no-op latency and throughput](chart.svg)
"""


def machine() -> str:
    """Describe the machine without naming it."""
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


def _row(entry: Entry | Start, measured: dict[str, Sample]) -> tuple[str, ...] | None:
    sample = measured.get(entry.name)
    if sample is None or not sample.times_ms:
        return None
    p50, rate = statistics.median(sample.times_ms), len(sample.times_ms) / sample.elapsed_s
    slower = faster = "–"
    base = measured.get(entry.base)
    if base and base.times_ms:
        slower = f"{p50 / statistics.median(base.times_ms):.2f}"
        faster = f"{rate / (len(base.times_ms) / base.elapsed_s):.2f}"
    return (
        entry.name,
        f"{p50:.2f}",
        f"{p95(sample.times_ms):.2f}",
        slower,
        f"{rate:,.0f}",
        faster,
        f"{len(sample.times_ms)}",
    )


def _table(rows: list[tuple[str, ...]]) -> str:
    head = ("contender", "p50 ms", "p95 ms", "× floor", "calls/s", "× floor", "calls")
    lines = [head, ("---", *["---:"] * (len(head) - 1)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def chart(entries: list[Entry | Start], samples: dict[str, dict[str, Sample]]) -> str:
    """Draw latency and throughput of empty commands as bars on logarithmic scales."""
    latency = {n: statistics.median(s.times_ms) for n, s in samples[LATENCY].items() if s.times_ms}
    rate = {n: len(s.times_ms) / s.elapsed_s for n, s in samples[THROUGHPUT].items() if s.times_ms}
    names = [entry.name for entry in entries if entry.name in latency]
    height = 24 * (len(latency) + len(rate)) + 110
    size = f'width="760" height="{height}" viewBox="0 0 760 {height}" font-family="sans-serif" font-size="13"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', '<rect width="100%" height="100%" fill="#ffffff"/>']
    y = _bars(parts, 30, "no-op, milliseconds (p50), shorter is better", names, latency, "{:.2f}")
    _bars(parts, y + 40, "no-op, 64 at once, calls a second, longer is better", names, rate, "{:,.0f}")
    return "\n".join([*parts, "</svg>\n"])


def _bars(parts: list[str], y: int, title: str, names: list[str], values: dict[str, float], form: str) -> int:
    parts.append(f'<text x="20" y="{y}" font-weight="bold">{escape(title)} (logarithmic)</text>')
    shown = [values[name] for name in names if name in values]
    low, high = log10(min(shown) / 2), log10(max(shown))
    for name in names:
        if name not in values:
            continue
        y += 24
        width = max(2, round(420 * (log10(values[name]) - low) / max(high - low, 0.01)))
        colour = next((colour for word, colour in COLOURS.items() if word in name), "#b9683b")
        parts.append(f'<text x="215" y="{y}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="225" y="{y - 13}" width="{width}" height="17" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{232 + width}" y="{y}">{form.format(values[name])}</text>')
    return y
