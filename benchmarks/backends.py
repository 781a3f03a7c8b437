"""Compare all backends in docs/evidence/backends.md: supported behaviours and costs, measured in one run.

`python -m benchmarks.backends [NAME]…` is the command of `make conformance`. With names, it prints the columns of these
backends and leaves the page as it is.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import engines
from benchmarks.machine_load import describe_load, measure_load
from benchmarks.measurements import Measurements, Sample, progress
from benchmarks.options import Options
from benchmarks.report import machine, table
from hermes_exec import SandboxPool
from hermes_exec.testing.conformance import Outcome, Report, run_conformance
from tests.engines import BACKENDS, options_of
from tests.structure.test_adapter_shape import adapter_lines

PAGE = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "backends.md"
BEGIN, END = "<!-- The table: make conformance writes it. -->", "<!-- The end of the table. -->"
HEADS = {"modal": "modal: client and loopback server"}


async def prove(name: str) -> Report:
    """Run the conformance suite on a backend, with the default slots of its pools."""

    def report(outcome: Outcome) -> None:
        progress(f"{name}: {outcome.name}")
        if outcome.status == "failed":
            print(f"\r\033[K{name}: FAILED {outcome.name}: {outcome.reason}", file=sys.stderr)

    with options_of(name) as options:
        return await run_conformance(partial(SandboxPool, name, **options), on_result=report)


MEDIANS = (
    "Medians of one run, in which all backends took turns. In parentheses: the engine's own way to run a command "
    "(asyncio's\nsubprocess, `docker exec`, `ssh` over one connection, `apptainer exec`, exec of Nomad's and of "
    "Modal's client).\n"
)


def render(reports: dict[str, Report], measurements: Measurements) -> str:
    """Return the tables in Markdown."""
    names = list(reports)
    head = ("", *(HEADS.get(name, name) for name in names))
    sides = "l" + "r" * len(names)
    parts = [table(head, sides, [*_behaviours(reports), *_facts(reports)])]
    rows = [(label, *(_cell(measurements, name, label) for name in names)) for label in engines.LABELS]
    parts += [MEDIANS, table(head, sides, rows)]
    parts += ["## Skipped behaviours\n", *map(_gaps, reports.items())]
    return "\n".join(parts)


def _behaviours(reports: dict[str, Report]) -> list[tuple[str, ...]]:
    """Return a row for each group: how many of its behaviours each backend supports."""
    groups = sorted({outcome.group for report in reports.values() for outcome in report.outcomes})
    rows = []
    for group in (*groups, "all behaviours"):
        cells = []
        for report in reports.values():
            counts = Counter(each.status for each in report.outcomes if group in (each.group, "all behaviours"))
            failed = f", **{counts['failed']} failed**" if counts["failed"] else ""
            cells.append(f"{counts['passed']} of {counts.total()}{failed}")
        rows.append((group, *cells))
    return rows


def _facts(reports: dict[str, Report]) -> list[tuple[str, ...]]:
    return [
        ("isolation level of a slot", *(report.facts.isolation.level for report in reports.values())),
        ("lines of the adapter", *(f"{adapter_lines(name):,}" for name in reports)),
    ]


def _cell(measurements: Measurements, name: str, label: str) -> str:
    """Return the figure of a backend, with the engine's own exec in parentheses."""
    ours, own = (_find_figure(measurements, label, contender) for contender in engines.PAIRS[name])
    return f"{ours} ({own})" if own else ours or "–"


def _find_figure(measurements: Measurements, label: str, contender: str) -> str:
    kind, discipline = engines.LABELS[label]
    sample = measurements.sample(discipline, contender)
    if sample is None:
        return ""
    return {"p50": _milliseconds, "calls": _calls, "bytes": _speed}[kind](sample)


def _milliseconds(sample: Sample) -> str:
    return f"{sample.p50_ms:,.2f} / {sample.p95_ms:,.2f} ms"


def _calls(sample: Sample) -> str:
    return f"{sample.per_second:,.0f}/s"


def _speed(sample: Sample) -> str:
    return f"{engines.MEGABYTES / sample.p50_ms * 1e3:,.0f} MiB/s"


def _gaps(named: tuple[str, Report]) -> str:
    name, report = named
    by_reason: dict[str, list[Outcome]] = {}
    for outcome in report.having("skipped"):
        by_reason.setdefault(outcome.reason, []).append(outcome)
    in_group = Counter(outcome.group for outcome in report.outcomes)
    lines: list[tuple[str, ...]] = []
    for reason, outcomes in by_reason.items():
        counts = Counter(outcome.group for outcome in outcomes)
        whole = [group for group, count in counts.items() if count == in_group[group]]
        names = [f"all of *{group}*" for group in whole]
        names += [f"`{outcome.name}`" for outcome in outcomes if outcome.group not in whole]
        lines.append((", ".join(names), reason.replace("|", "\\|")))
    text = table(("skipped behaviours", "reason"), "ll", lines) if lines else "No behaviour is skipped.\n"
    return f"### {name}\n\n{text}"


def write(text: str) -> None:
    """Replace the table on the page, or append it to a page without a table."""
    before, marker, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2] if marker else "\n"
    head = before if marker else f"{before.rstrip()}\n\n"
    PAGE.write_text(f"{head}{BEGIN}\n\n{text}\n{END}{after}", "utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table. Return 1 if a behaviour failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BACKENDS)}")
    names = parser.parse_args(argv).names
    if unknown := set(names) - set(BACKENDS):
        parser.error(f"there is no backend {unknown.pop()!r} here")
    load = measure_load("backends")
    measurements = asyncio.run(engines.measure(Options()))
    reports = {name: asyncio.run(prove(name)) for name in names or BACKENDS}
    text = f"Machine: {machine()}.\n{describe_load([load])}\n\n{render(reports, measurements)}"
    if names:
        print(text)
    else:
        write(text)
        print(PAGE)
    return 1 if any(report.failed for report in reports.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
