"""Run all attacks on all levels and print the tables: `python -m tests.attack [--write] [--level LEVEL]`.

`--write` puts them into docs/evidence/attacks.md. The page keeps the columns of levels and the rows that are not run.
All levels are available only as root, with Docker and with Apptainer.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.attack.arena import MANY, MOST
from tests.attack.campaign import campaign
from tests.attack.levels import LEVELS
from tests.attack.model import Outcome
from tests.attack.page import render, rewrite
from tests.attack.table import ROWS


def main() -> int:
    """Fire, and print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--level", action="append", choices=LEVELS)
    parser.add_argument("--million", action="store_true", help="a directory of a million entries, 50,000 processes")
    parser.add_argument(
        "--much", type=int, help="as many entries of a directory, a twentieth of it short-lived processes"
    )
    parser.add_argument("--rounds", type=int, help="how often each row is fired at the most")
    parser.add_argument("--only", action="append", metavar="ROW", help="fire these rows; the page keeps the others")
    options = parser.parse_args()
    if options.write and os.geteuid() != 0:
        parser.error("the page has all levels: run this as root, with Docker and Apptainer")
    levels = options.level or list(LEVELS)
    much = options.much or (MOST if options.million else MANY)
    rows = [row for row in ROWS if not options.only or row.id in options.only]

    def fired(level: str, *, measured: bool) -> dict[str, Outcome]:
        these = [row for row in rows if (row.attack.area == "resources") == measured]
        return campaign(LEVELS[level], these, long=True, much=much, rounds=options.rounds) if these else {}

    with ThreadPoolExecutor(len(levels)) as threads:
        seen = dict(zip(levels, threads.map(partial(fired, measured=False), levels), strict=True))
    for level in levels:
        # One after the other: the neighbour's calls are measured.
        seen[level] |= fired(level, measured=True)
    if options.write:
        rewrite(ROWS, seen)
    else:
        print(render(ROWS, seen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
