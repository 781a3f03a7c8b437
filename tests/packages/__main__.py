"""`python -m tests.packages` runs the suites in all places and compares the verdicts, test for test."""

from __future__ import annotations

import argparse
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from docker import from_env
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.images.build import ensure
from tests.packages.compare import Seen, counted, differing, gone, named, settled
from tests.packages.known_differences import EXPLAINED
from tests.packages.locations import PAIRS, NoReport, Pair, Place, Work
from tests.packages.page import HEAD, Line, rewrite, row_of, told
from tests.packages.report import Report
from tests.packages.suites import SUITES, Suite, fetched

COLUMNS = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())


class Both(NamedTuple):
    """What a suite said in a pair of places; a text where it did not come to its end."""

    suite: Suite
    pair: Pair
    outside: Report | str
    inside: Report | str


def main() -> int:
    """Run and compare; the exit code is 1 when a verdict differs without an explanation, or a suite gave no report."""
    parser = argparse.ArgumentParser(prog="python -m tests.packages", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="PACKAGE", help="default: all")
    parser.add_argument("--pair", action="append", choices=[pair.name for pair in PAIRS], help="default: all")
    parser.add_argument("--at-once", type=int, default=3, help="how many suites run beside each other")
    parser.add_argument("--rounds", type=int, default=3, help="how often tests that differ are run again, alone")
    parser.add_argument("--write", action="store_true", help="put what is seen into the documentation")
    asked = parser.parse_args()
    # Shells let what they put into the background ignore these. Suites on this host would inherit it, slots do not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    suites = [suite for suite in SUITES if not asked.names or suite.name in asked.names]
    if unknown := set(asked.names) - {suite.name for suite in suites}:
        parser.error(f"there are no suites of {', '.join(sorted(unknown))}")
    pairs = [pair for pair in PAIRS if not asked.pair or pair.name in asked.pair]
    console = Console(stderr=True)
    image = ensure(from_env(), "debian")
    results = run(suites, pairs, image, asked.at_once, console)
    wrong, rows, right = [], [], []
    for both in results:
        found = judge(both, image, asked.rounds, console)
        wrong += found
        if isinstance(both.outside, dict) and isinstance(both.inside, dict):
            rows.append(row_of(both.suite, both.pair, both.outside, both.inside))
            right += [] if found else rows[-1:]
    show(rows, console)
    for text in wrong:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(f"{len(wrong)} differences without an explanation" if wrong else "the verdicts are the same")
    if asked.write:
        rewrite(right)
    return 1 if wrong else 0


def run(suites: list[Suite], pairs: list[Pair], image: str, at_once: int, console: Console) -> list[Both]:
    """All suites in all places, those that take longest first; each tells when it is done."""
    works = {suite.name: Work(suite, fetched(suite), image) for suite in suites}
    found: dict[tuple[str, str], Both] = {}
    with ThreadPoolExecutor(at_once) as threads, Progress(*COLUMNS, console=console) as progress:
        task = progress.add_task("suites", total=2 * len(suites) * len(pairs))

        def one(suite: Suite, pair: Pair) -> None:
            # One after the other: on this host both sides have the same ports, and some suites take fixed ones.
            sides = []
            for place in (pair.outside, pair.inside):
                said = report(place, works[suite.name])
                sides.append(said)
                result = told(counted(suite.name, said, EXPLAINED)) if isinstance(said, dict) else "no report"
                progress.console.print(f"{suite.name}, {place.title}: {result}", markup=False, highlight=False)
                progress.advance(task)
            found[suite.name, pair.name] = Both(suite, pair, *sides)

        longest = sorted(suites, key=lambda suite: -suite.seconds)
        for future in [threads.submit(one, suite, pair) for suite in longest for pair in pairs]:
            future.result()
    return [found[suite.name, pair.name] for suite in suites for pair in pairs]


def report(place: Place, work: Work) -> Report | str:
    """What a suite said, or why it said nothing."""
    try:
        return place.run(work)
    except NoReport as error:
        return str(error)


def judge(both: Both, image: str, rounds: int, console: Console) -> list[str]:
    """What is wrong, after the tests that differ were run again alone, as often as asked for."""
    suite, pair, outside, inside = both
    if isinstance(outside, str) or isinstance(inside, str):
        sides = ((pair.outside, outside), (pair.inside, inside))
        return [f"{suite.name}, {place.title}: no report: {said}" for place, said in sides if isinstance(said, str)]
    tests = differing(outside, inside)
    seen = {test: Seen() for test in tests}
    for test in tests:
        seen[test].add(outside, inside, test)
    again = tuple(test for test in tests if named(suite.name, pair.name, test, EXPLAINED) is None)
    for _ in range(rounds if again else 0):
        with console.status(f"{suite.name}, {pair.inside.title}: {len(again)} tests again"):
            work = Work(suite, fetched(suite), image, again)
            outside_again, inside_again = (report(place, work) for place in (pair.outside, pair.inside))
        for test in again:
            seen[test].add(_or_none(outside_again), _or_none(inside_again), test)
    wrong = []
    for test in tests:
        text = f"{suite.name}, {pair.inside.title}: {test}: {seen[test]}"
        if settled(seen[test], named(suite.name, pair.name, test, EXPLAINED)):
            console.print(f"varies or is explained: {text}", markup=False, highlight=False, soft_wrap=True)
        else:
            wrong.append(text)
    stale = gone(suite.name, pair.name, tests, EXPLAINED)
    return wrong + [f"{suite.name}, {pair.inside.title}: {test}: explained, but does not differ" for test in stale]


def _or_none(said: Report | str) -> Report:
    return said if isinstance(said, dict) else {}


def show(lines: list[Line], console: Console) -> None:
    """The table as it is in the documentation."""
    table = Table(title="verdicts outside of slots and in them")
    for column in HEAD:
        table.add_column(column)
    for row in lines:
        table.add_row(*(cell.replace("`", "") for cell in row))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
