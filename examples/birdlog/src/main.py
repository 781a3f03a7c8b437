"""Prints a report of one table."""

import sys
from pathlib import Path

from reader import read_sightings
from report import format_totals, totals


def main() -> None:
    for line in format_totals(totals(read_sightings(Path(sys.argv[1])))):
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
