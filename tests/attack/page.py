"""The tables of docs/evidence/attacks.md: rendered from outcomes, and read back by the tests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.attack.levels import LEVELS
from tests.attack.model import Outcome, Row

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "attacks.md"
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
"""Outcomes by level and row."""


def render(rows: Iterable[Row], seen: Seen, page: str = "") -> str:
    """All tables, and why something is not given where it is not; what was not fired now is as the page has it."""
    rows, kept = list(rows), _cells(page)
    parts = []
    for area, title in AREAS.items():
        of_area = [row for row in rows if row.attack.area == area]
        if of_area:
            parts += [f"## {title}", "", *_table(of_area, seen, kept), *_notes(of_area, seen, kept, page)]
    return "\n".join(parts).strip() + "\n"


def _text(row: Row, level: str, seen: Seen, kept: Mapping[str, Mapping[str, str]]) -> str:
    if row.id in seen.get(level, {}):
        return cell(seen[level][row.id])
    return kept[level].get(key(row), UNKNOWN)


def _table(rows: list[Row], seen: Seen, kept: Mapping[str, Mapping[str, str]]) -> list[str]:
    titles = [level.title for level in LEVELS.values()]
    lines = [_line(["attack", "on", *titles]), _line(["---"] * (2 + len(titles)))]
    for row in rows:
        cells = [_text(row, level, seen, kept) for level in LEVELS]
        lines.append(_line([f"**{row.attack.name}**: {row.attack.does}", row.against, *cells]))
    return [*lines, ""]


def _notes(rows: list[Row], seen: Seen, kept: Mapping[str, Mapping[str, str]], page: str) -> list[str]:
    reasons: dict[str, str] = {}
    figures: dict[tuple[str, str], str] = {}
    for row in rows:
        name = f"**{row.attack.name}**"
        if any(_text(row, level, seen, kept).startswith("**not given") for level in LEVELS):
            reasons[name] = row.attack.why
        for level in LEVELS.values():
            outcome = seen.get(level.id, {}).get(row.id)
            head = f"| {name} | {level.title} | "
            before = [line.removeprefix(head).removesuffix(" |") for line in page.splitlines() if line.startswith(head)]
            text = outcome.measured if outcome and outcome.measured else "".join(before[:1])
            if text:
                figures[name, level.title] = text
    notes = _notes_table(["not given", "why"], reasons.items())
    return notes + _notes_table(["measured", "level", "figures"], ((*key, text) for key, text in figures.items()))


def _notes_table(head: list[str], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [_line(list(row)) for row in rows]
    return [_line(head), _line(["---"] * len(head)), *lines, ""] if lines else []


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cell(outcome: Outcome) -> str:
    """What a cell says: the verdict, and how much slower the neighbour was where that was measured."""
    verdict = "**not given**" if outcome.verdict == "not given" else outcome.verdict
    return verdict if outcome.slower is None else f"{verdict}, {outcome.slower:.1f}×"


def written(page: str) -> dict[str, dict[str, str]]:
    """The verdicts that a page states, by level and row; measured figures are left out."""
    return {
        level: {name: text.replace("*", "").partition(",")[0] for name, text in cells.items()}
        for level, cells in _cells(page).items()
    }


def _cells(page: str) -> dict[str, dict[str, str]]:
    told: dict[str, dict[str, str]] = {level: {} for level in LEVELS}
    area, columns = "", list[str]()
    by_title = {title: name for name, title in AREAS.items()}
    for line in page.partition(BEGIN)[2].partition(END)[0].splitlines():
        if line.startswith("## "):
            area = by_title[line.removeprefix("## ")]
        if line.startswith("| attack | on | "):
            by_column = {level.title: level.id for level in LEVELS.values()}
            columns = [by_column[title] for title in line.removesuffix(" |").split(" | ")[2:]]
        match = re.match(r"\| \*\*(.+?)\*\*: .+? \| (\w+) \| (.+) \|$", line)
        if match:
            name, against, cells = match.groups()
            for level, text in zip(columns, cells.split(" | "), strict=True):
                told[level][f"{area}: {name}|{against}"] = text
    return told


def key(row: Row) -> str:
    """The name of a row in what `written` returns."""
    return f"{row.attack.area}: {row.attack.name}|{row.against}"


def rewrite(rows: Iterable[Row], seen: Seen) -> None:
    """Put new tables between the markers of the page."""
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n\n{render(rows, seen, text)}\n{END}{tail}")
