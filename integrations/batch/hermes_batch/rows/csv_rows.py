"""Reads rows from CSV, whose first line names the columns."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from hermes_batch.rows.row import ParsedRow, Row

_LONGEST_CELL = 1 << 30
_NOT_UTF8 = re.compile("[\udc80-\udcff]")


def read_csv(file: BinaryIO) -> Iterator[ParsedRow]:
    """Yield the rows of a file in their order: every value is a text, or None for an empty cell.

    A byte order mark and blank lines are ignored. The place of a row is its first line.
    """
    csv.field_size_limit(_LONGEST_CELL)  # of the process; the module's own limit of 128 KiB is less than a file
    with io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="") as text:
        yield from _read_cells(text)


def _read_cells(text: Iterable[str]) -> Iterator[ParsedRow]:
    reader = csv.reader(text, strict=True)
    names: list[str] | None = None
    while True:
        place = f"line {reader.line_num + 1}"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield ParsedRow(place, {}, f"is not CSV: {error}")
            if names is None:
                return
            continue
        if not cells:
            continue
        if names is not None:
            yield _make_row(place, names, cells)
        elif why := _explain_heading(cells):
            yield ParsedRow(place, {}, why)
            return
        else:
            names = cells


def _explain_heading(names: Sequence[str]) -> str:
    """Return the error in the names of the columns, or an empty text."""
    if _NOT_UTF8.search("".join(names)):
        return "is not UTF-8"
    if not all(names):
        return "has a column without a name"
    name, count = Counter(names).most_common(1)[0]
    return f"has the column {name!r} twice" if count > 1 else ""


def _make_row(place: str, names: Sequence[str], cells: Sequence[str]) -> ParsedRow:
    if len(cells) != len(names):
        return ParsedRow(place, {}, f"has {len(cells)} cells, and the heading has {len(names)}")
    if any(map(_NOT_UTF8.search, cells)):
        return ParsedRow(place, {}, "is not UTF-8")
    row: Row = {name: cell or None for name, cell in zip(names, cells, strict=True)}
    return ParsedRow(place, row, untyped=True)
