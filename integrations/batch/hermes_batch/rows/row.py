"""One row of a dataset, as it was read."""

from __future__ import annotations

from typing import NamedTuple

Row = dict[str, object]


class ParsedRow(NamedTuple):
    """A row, or the error in it.

    `place` names the row: "line 7" of a file of lines, "row 7" of a table. `untyped`: every value is a text, because
    its format has no other types.
    """

    place: str
    row: Row
    error: str = ""
    untyped: bool = False
