"""`index.jsonl`: for each line of `trajectories.jsonl` its place and small columns, so that nobody parses the records.

The first line names the version and the columns. Each further line belongs to a line of the trajectories, in the same
order. The index can be made anew from the trajectories at any time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import from_json

from hermes_agent.parsers.json_text import dump
from hermes_batch.columns import decode_list, upgrade_row
from hermes_exec.private_files import open_private

TRAJECTORIES = "trajectories.jsonl"
INDEX = "index.jsonl"
Row = dict[str, Any]
"""A record as read, in the current columns, or its row of the index. One of another program may lack fields."""

_COLUMNS = (
    *("group", "sample", "prompt_index", "id", "task_digest", "solved", "trainable", "reward", "finish", "cause"),
    *("turns", "tool_calls", "api_calls", "prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens"),
    *("cost", "seconds", "timings", "started", "ended", "attempts", "backend", "image", "isolation"),
    "program_exit_code",
)
_METADATA_CHARACTERS = 2000
_MESSAGE_CHARACTERS = 500
_HEADER = {"index": 1, "columns": [*_COLUMNS, "task_metadata", "errors", "current"]}
_BUFFER_BYTES = 1 << 20
_PROBES = 32
_LARGEST_LINE_BYTES = 1 << 20


def parse_record(line: bytes) -> tuple[Row | None, bool]:
    """Return the record of a line in the current columns, or None, and whether the line has these columns itself."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None, False
    whole = isinstance(row, dict) and isinstance(row.get("conversations"), list)
    if not whole or not isinstance(row.get("prompt_index"), int):
        return None, False
    upgraded = upgrade_row(row)
    return upgraded, upgraded is row


def make_index_row(record: Mapping[str, Any] | None, offset: int, length: int, *, current: bool = True) -> Row:
    """Return the row of the index for a line of the trajectories.

    A line that is not a record (None) has a row without columns. `task_metadata` is left out if it is long, and of
    `errors` only the errors of a record without a score stay. `current` is False for a line of an earlier version.
    """
    row: Row = {"offset": offset, "length": length}
    if record is None:
        return row
    row |= {name: record[name] for name in _COLUMNS if name in record}
    metadata = record.get("task_metadata", "{}")
    if len(metadata) <= _METADATA_CHARACTERS:
        row["task_metadata"] = metadata
    if not record.get("trainable", True):
        row["errors"] = dump([_shorten(error) for error in decode_list(record, "errors") if isinstance(error, dict)])
    return row if current else {**row, "current": False}


def _shorten(error: Mapping[str, Any]) -> dict[str, Any]:
    return {**error, "message": str(error.get("message", ""))[:_MESSAGE_CHARACTERS]}


def encode_line(row: Mapping[str, Any]) -> bytes:
    """Return a row as a line of a file. Unpaired surrogates, which UTF-8 cannot hold, become question marks."""
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def is_record(row: Mapping[str, Any]) -> bool:
    """Return whether the line of this row of the index is a record."""
    return "prompt_index" in row


class IndexWriter:
    """The index of a run in progress. Its lines are derived, so that they need not survive a crash of the machine."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    @classmethod
    def create(cls, path: Path) -> IndexWriter:
        """Create an empty index, in place of an existing one."""
        writer = cls(open(path, "wb", opener=open_private))  # noqa: SIM115 - kept open
        writer.append(_HEADER)
        return writer

    @classmethod
    def reopen(cls, path: Path) -> IndexWriter:
        """Open an index to add rows."""
        return cls(open(path, "ab", opener=open_private))

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row."""
        self._file.write(encode_line(row))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def iterate_index(out: Path) -> Iterator[Row]:
    """Yield a row for each line of the trajectories, in their order, with its `offset` and `length` in bytes.

    Rows come from the index as far as it fits the trajectories, and then from the trajectories.

    Raises:
        OSError: If there are no trajectories.
    """
    covered = 0
    with (out / TRAJECTORIES).open("rb") as lines:
        size = os.fstat(lines.fileno()).st_size
        if index_fits(out):
            for row in _read_rows(out / INDEX):
                if row["offset"] != covered or covered + row["length"] > size:
                    break
                covered += row["length"]
                yield row
        lines.seek(covered)
        for line in lines:
            record, current = parse_record(line)
            yield make_index_row(record, covered, len(line), current=current)
            covered += len(line)


def _read_rows(path: Path) -> Iterator[Row]:
    with path.open("rb", buffering=_BUFFER_BYTES) as index:
        next(index, b"")
        for line in index:
            row = _parse_row(line)
            if row is None:
                return
            yield row


def _parse_row(line: bytes) -> Row | None:
    """Return a row of the index, or None if the line is none, or only the beginning of one."""
    try:
        # Twice as fast as `json.loads`, and equal strings are one object.
        row = from_json(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    is_row = isinstance(row, dict) and isinstance(row.get("offset"), int) and isinstance(row.get("length"), int)
    return row if is_row else None


def index_fits(out: Path) -> bool:
    """Return whether the index belongs to the trajectories. It may end before them, if a run is working or was killed.

    The index must be as new as the trajectories, and a few of its rows are compared with their records.
    """
    try:
        with (out / TRAJECTORIES).open("rb") as lines, (out / INDEX).open("rb") as index:
            return _fits(lines, index)
    except OSError:
        return False


def _fits(lines: BinaryIO, index: BinaryIO) -> bool:
    trajectories_state, index_state = os.fstat(lines.fileno()), os.fstat(index.fileno())
    if index_state.st_mtime_ns < trajectories_state.st_mtime_ns:
        return False
    try:
        if json.loads(index.readline()) != _HEADER:
            return False
    except ValueError:
        return False
    first, size = index.tell(), index_state.st_size
    starts = {first + (size - first) * n // _PROBES for n in range(_PROBES)}
    return all(_is_row_of(_line_after(index, start, first), lines) for start in starts)


def _line_after(index: BinaryIO, start: int, first: int) -> bytes:
    """Return the first line of the index that begins at or after `start`. Empty: there is none."""
    index.seek(max(first, start - 1))
    if start > first:
        index.readline(_LARGEST_LINE_BYTES)
    return index.readline(_LARGEST_LINE_BYTES)


def _is_row_of(index_line: bytes, lines: BinaryIO) -> bool:
    """Return whether a line of the index is the row of a line of the trajectories, or the end of an index that is being
    written, which has no row.
    """
    if not index_line.endswith(b"\n"):
        return True
    row = _parse_row(index_line)
    if row is None:
        return False
    lines.seek(row["offset"])
    line = lines.read(row["length"])
    record, current = parse_record(line)
    return row == make_index_row(record, row["offset"], len(line), current=current)


def refresh_index(out: Path) -> None:
    """Make the index anew unless it covers the trajectories. The caller holds the lock of the trajectories.

    Raises:
        OSError: If it cannot be written.
    """
    if index_fits(out) and _covered_bytes(out / INDEX) == (out / TRAJECTORIES).stat().st_size:
        return
    aside = out / f".{INDEX}.new"
    writer = IndexWriter.create(aside)
    try:
        for row in iterate_index(out):
            writer.append(row)
    finally:
        writer.close()
    aside.replace(out / INDEX)


def _covered_bytes(path: Path) -> int:
    """Return the end of the last line that the index has a row for, or -1 if its own last line is broken."""
    with path.open("rb") as index:
        size = index.seek(0, os.SEEK_END)
        index.seek(max(0, size - _LARGEST_LINE_BYTES))
        *_, last = [b"", *index.read().splitlines(keepends=True)]
    row = _parse_row(last)
    if row is not None:
        return int(row["offset"]) + int(row["length"])
    return 0 if last.endswith(b"\n") else -1
