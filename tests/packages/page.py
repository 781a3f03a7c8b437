"""The tables of docs/evidence/package-suites.md: `python -m tests.packages --write` writes them, tests read them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.packages.compare import Named, counted
from tests.packages.known_differences import EXPLAINED
from tests.packages.locations import PAIRS, Pair
from tests.packages.report import Report
from tests.packages.suites import SUITES, Suite

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "package-suites.md"
BEGIN = "<!-- packages: begin (python -m tests.packages --write) -->"
END = "<!-- packages: end -->"
ROW = re.compile(r"\| (.+) \| (.+) \| (.+) \| (.+) \| (.+) \|")
ORDER = ("passed", "failed", "skipped", "varies")


class Line(NamedTuple):
    """One row: a suite in one pair of places, and how many of its tests had which verdict on either side."""

    package: str
    outside: str
    verdicts: str
    inside: str
    same: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is about."""
        return self.package, self.outside, self.inside

    def __str__(self) -> str:
        return f"| {' | '.join(self)} |"


DIFFERENCES = ("| test | verdict | reason |", "|---|---|---|")
HEAD = Line("package", "outside", "verdicts", "in a slot", "verdicts")


def row_of(suite: Suite, pair: Pair, outside: Report, inside: Report) -> Line:
    """The row of a suite in a pair of places."""
    verdicts, same = (told(counted(suite.name, report, EXPLAINED)) for report in (outside, inside))
    return Line(title(suite), pair.outside.title, verdicts, pair.inside.title, same)


def title(suite: Suite) -> str:
    """A package and how it is run."""
    return f"{suite.name} {suite.version}{', on a terminal' if suite.terminal else ''}"


def keys() -> list[tuple[str, str, str]]:
    """What the rows are about, in their order."""
    return [(title(suite), pair.outside.title, pair.inside.title) for suite in SUITES for pair in PAIRS]


def told(counts: Counter[str]) -> str:
    """`251 passed, 4 failed`."""
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in ORDER if counts[verdict])


def difference(known: Named) -> str:
    """One named difference."""
    titles = [pair.inside.title for pair in PAIRS if pair.name in known.pairs]
    where = f" ({', '.join(titles)})" if titles else ""
    kind = "varies" if known.varies else "differs"
    return f"| {known.package}: `{known.test}` | {kind}{where} | {known.why} |"


def written() -> tuple[list[Line], list[str]]:
    """What stands there: the rows, and the named differences."""
    lines = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0].splitlines()
    rows = [Line(*match.groups()) for text in lines if (match := re.fullmatch(ROW, text))]
    return [row for row in rows if row != HEAD], [text for text in lines if "::" in text]


def rewrite(lines: list[Line]) -> None:
    """Put new rows and the named differences between the markers of the page; rows of other suites stay."""
    rows = {row.key: row for row in [*written()[0], *lines]}
    ordered = [str(rows[key]) for key in keys() if key in rows]
    table = [str(HEAD), f"|{'---|' * len(HEAD)}", *ordered, "", *DIFFERENCES, *map(difference, EXPLAINED)]
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    text = "\n".join([before + BEGIN, "", *table, "", END + rest.partition(END)[2]])
    PAGE.write_text(text, "utf-8")
