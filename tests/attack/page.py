"""The tables in docs/isolation.md: written from what was seen, and read back by the tests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.attack.model import Outcome, Row
from tests.attack.rungs import RUNGS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "isolation.md"
BEGIN = "<!-- attacks: begin (python -m tests.attack --write) -->"
END = "<!-- attacks: end -->"
AREAS = {
    "files": "Files",
    "processes": "Processes",
    "ipc": "Shared memory, sockets, queues, keys, terminals",
    "network": "Network",
    "privilege": "Privilege",
    "resources": "Resources",
    "protocol": "The runner's socket and the driver",
}
UNKNOWN = "not fired"

Seen = Mapping[str, Mapping[str, Outcome]]
"""Outcomes by rung and row."""


def render(rows: Iterable[Row], seen: Seen) -> str:
    """All tables, and why something is not given where it is not."""
    rows = list(rows)
    parts = []
    for area, title in AREAS.items():
        of_area = [row for row in rows if row.attack.area == area]
        if of_area:
            parts += [f"### {title}", "", *_table(of_area, seen), *_reasons(of_area, seen)]
    return "\n".join(parts).strip() + "\n"


def _table(rows: list[Row], seen: Seen) -> list[str]:
    titles = [rung.title for rung in RUNGS.values()]
    lines = [_line(["attack", "on", *titles]), _line(["---"] * (2 + len(titles)))]
    for row in rows:
        cells = [cell(seen[rung][row.id]) if row.id in seen.get(rung, {}) else UNKNOWN for rung in RUNGS]
        lines.append(_line([f"**{row.attack.name}**: {row.attack.does}", row.against, *cells]))
    return [*lines, ""]


def _reasons(rows: list[Row], seen: Seen) -> list[str]:
    open_rows = {row.attack.name: row for row in rows if any(_is_open(outcomes, row) for outcomes in seen.values())}
    return [f"- Not given, **{name}**: {row.attack.why}" for name, row in open_rows.items()] + (
        [""] if open_rows else []
    )


def _is_open(outcomes: Mapping[str, Outcome], row: Row) -> bool:
    return row.id in outcomes and outcomes[row.id].verdict == "not given"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cell(outcome: Outcome) -> str:
    """What a cell says: the verdict, and how much slower the neighbour was where that was measured."""
    verdict = "**not given**" if outcome.verdict == "not given" else outcome.verdict
    return verdict if outcome.slower is None else f"{verdict}, {outcome.slower:.1f}×"


def written(page: str) -> dict[str, dict[str, str]]:
    """The verdicts that a page states, by rung and row; measured figures are left out."""
    told: dict[str, dict[str, str]] = {rung: {} for rung in RUNGS}
    area = ""
    by_title = {title: name for name, title in AREAS.items()}
    for line in page.partition(BEGIN)[2].partition(END)[0].splitlines():
        if line.startswith("### "):
            area = by_title[line.removeprefix("### ")]
        match = re.match(r"\| \*\*(.+?)\*\*: .+? \| (\w+) \| (.+) \|$", line)
        if match:
            name, against, cells = match.groups()
            for rung, text in zip(RUNGS, cells.split(" | "), strict=True):
                told[rung][f"{area}: {name}|{against}"] = text.replace("*", "").partition(",")[0]
    return told


def key(row: Row) -> str:
    """The name of a row in what `written` returns."""
    return f"{row.attack.area}: {row.attack.name}|{row.against}"


def rewrite(rows: Iterable[Row], seen: Seen) -> None:
    """Put new tables between the markers of the page."""
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n\n{render(rows, seen)}\n{END}{tail}")
