"""Fires all attacks on all rungs and prints the tables: `python -m tests.attack [--write] [--rung RUNG]`.

`--write` puts them into docs/isolation.md. All rungs are there only as root and with Docker.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.attack.campaign import campaign
from tests.attack.page import render, rewrite
from tests.attack.rungs import RUNGS
from tests.attack.table import ROWS


def main() -> int:
    """Fire, and print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rung", action="append", choices=RUNGS)
    options = parser.parse_args()
    if options.write and (os.geteuid() != 0 or options.rung):
        parser.error("the page has all rungs: run this as root, with Docker, and without --rung")
    rungs = options.rung or list(RUNGS)
    with ThreadPoolExecutor(len(rungs)) as threads:
        seen = dict(zip(rungs, threads.map(lambda rung: campaign(RUNGS[rung], ROWS, long=True), rungs), strict=True))
    if options.write:
        rewrite(ROWS, seen)
    else:
        print(render(ROWS, seen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
