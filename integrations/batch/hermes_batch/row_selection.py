"""Selection, order and groups of the records of a run, by the columns of the index."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hermes_batch.index import TRAJECTORIES, Row
from hermes_batch.tally import Tally
from hermes_batch.trajectories import read_record_at
from hermes_exec.config import nearest
from hermes_exec.errors import ConfigError, ErrorCause

OUTCOMES = ("solved", "unsolved", "unscored", "unchecked")
GROUP_COLUMNS = ("finish", "cause", "solved", "id", "group", "sample", "backend", "image", "isolation", "attempts")
METADATA = "task_metadata"


def count_tokens(row: Mapping[str, Any]) -> int:
    """Return the tokens of a record, read and written."""
    return int(row.get("prompt_tokens", 0)) + int(row.get("completion_tokens", 0))


SORTS = {
    "tokens": count_tokens,
    "seconds": lambda row: float(row.get("seconds", 0)),
    "turns": lambda row: int(row.get("turns", 0)),
    "calls": lambda row: int(row.get("tool_calls", 0)),
    "cost": lambda row: float(row.get("cost", 0)),
}


@dataclass(frozen=True)
class RowSelection:
    """Selects records.

    Args:
        outcomes: The values of `solved` to keep. Empty: all.
        cause: The `cause` to keep. None: all.
        sort: The figure to sort by, largest first. None: keep the order.

    Raises:
        ConfigError: If a name is unknown.
    """

    outcomes: Sequence[str] = ()
    cause: str | None = None
    sort: str | None = None

    def __post_init__(self) -> None:
        _check_name("--sort", self.sort, tuple(SORTS))
        _check_name("--cause", self.cause, tuple(cause.value for cause in ErrorCause))

    @property
    def selects_all(self) -> bool:
        """Whether every record is kept."""
        return not self.outcomes and self.cause is None

    def apply(self, rows: Sequence[Row]) -> list[Row]:
        """Return the selected rows in their order."""
        selected = [
            row
            for row in rows
            if (not self.outcomes or row.get("solved") in self.outcomes)
            and (self.cause is None or row.get("cause") == self.cause)
        ]
        return selected if self.sort is None else sorted(selected, key=SORTS[self.sort], reverse=True)


def group_rows(out: Path, rows: Iterable[Row], by: str) -> dict[str, Tally]:
    """Return the totals of records by a column, or by a field of their metadata (`task_metadata.source`), the largest
    group first.

    Raises:
        ConfigError: If the column is unknown.
    """
    column, *fields = by.split(".")
    if column != METADATA:
        _check_name("--by", by, (*GROUP_COLUMNS, f"{METADATA}.FIELD"))
    elif not all(fields) or not fields:
        raise ConfigError(f"--by {by}: name a field of the metadata, such as {METADATA}.source")
    groups: dict[str, Tally] = {}
    with (out / TRAJECTORIES).open("rb") as lines:
        for row in rows:
            value = _find_field(_read_metadata(row, lines), fields) if column == METADATA else row.get(column)
            text = "(none)" if value is None else value if isinstance(value, str) else json.dumps(value)
            if text not in groups:
                groups[text] = Tally()
            groups[text].add(row)
    return dict(sorted(groups.items(), key=lambda item: -item[1].records))


def _read_metadata(row: Row, lines: BinaryIO) -> object:
    """Return the metadata of a record. The index has none that is long."""
    text = row[METADATA] if METADATA in row else read_record_at(lines, row["offset"]).get(METADATA)
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def _find_field(value: object, fields: Sequence[str]) -> object:
    for field in fields:
        value = value.get(field) if isinstance(value, dict) else None
    return value


def _check_name(option: str, name: str | None, names: Sequence[str]) -> None:
    if name is not None and name not in names:
        raise ConfigError(f"{option} {name!r} is unknown; {nearest(name, names)}")
