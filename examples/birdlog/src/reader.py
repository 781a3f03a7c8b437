"""Reads the table of sightings."""

import csv
from pathlib import Path
from typing import NamedTuple


class Sighting(NamedTuple):
    day: str
    station: str
    species: str
    count: int


def parse_line(row: list[str]) -> Sighting:
    """Parse one row of the table; raise ValueError when the count is no number."""
    day, station, species, count = row
    return Sighting(day, station, species, int(count))


def read_sightings(path: Path) -> list[Sighting]:
    """Read all rows of the table without its heading."""
    with path.open(newline="", encoding="utf-8") as table:
        rows = csv.reader(table)
        next(rows)
        return [parse_line(row) for row in rows]
