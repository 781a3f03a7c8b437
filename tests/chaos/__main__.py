"""`python -m tests.chaos [NAME…]` does the disasters; `--write` puts what is seen into the documentation."""

from __future__ import annotations

import argparse
import sys

import anyio

from tests.chaos.table import LONG, line, meaning, rows, write, written


def main() -> int:
    """Do all rows, or those that are named; the exit code is 1 when one differs from the documentation."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the rows (default: all)")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--kills", type=int, default=LONG, help="how many drivers are killed on each backend")
    asked = parser.parse_args()
    known = rows(asked.kills)
    if unknown := set(asked.names) - set(known):
        parser.error(f"there are no rows {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    table, differs = written(), False
    for name in asked.names or known:
        row = known[name]
        text = line(row, anyio.run(row.run))
        differs |= row.what not in table or meaning(table[row.what]) != meaning(text)
        table[row.what] = text
        print(text, flush=True)
    if asked.write:
        write([table[row.what] for row in known.values() if row.what in table])
    return int(differs and not asked.write)


if __name__ == "__main__":
    sys.exit(main())
