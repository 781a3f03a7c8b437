"""The file of results: one record per line, written as prompts end and read one at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import anyio.to_thread

from hermes_batch.images import IMAGE_NAME, SCREENSHOTS
from hermes_batch.index import (
    INDEX,
    TRAJECTORIES,
    IndexWriter,
    Row,
    encode_line,
    is_record,
    iterate_index,
    make_index_row,
    parse_record,
    refresh_index,
)
from hermes_batch.record import Record
from hermes_batch.settings import explain_write_errors
from hermes_exec.errors import ConfigError
from hermes_exec.file_lock import lock_file
from hermes_exec.private_files import make_directory, open_private

_TAIL_BYTES = 1 << 20
Key = tuple[str, int]
"""The group and the sample of a record."""
Changes = dict[int, Key | None]
"""The new keys of records, by the offset of their lines. None: remove the line."""
PlanChanges = Callable[[Iterator[Row]], Changes]


class Trajectories:
    """`trajectories.jsonl` and `index.jsonl` of a run in progress. A lock keeps other processes from writing them."""

    def __init__(self, file: BinaryIO, out: Path, index: IndexWriter) -> None:
        self._file, self._out, self._index = file, out, index
        self._size = os.fstat(file.fileno()).st_size

    @classmethod
    def create(cls, out: Path, *, overwrite: bool) -> Self:
        """Create new files in `out`.

        Raises:
            ConfigError: If there already are some and `overwrite` is not set, if another process writes them, or if
                they cannot be written.
        """
        with _raise_config_error(f"out: cannot write to {out}"):
            make_directory(out)
            file = open(out / TRAJECTORIES, "ab" if overwrite else "xb", opener=open_private)  # noqa: SIM115 - kept open
            _lock(file, out)
            file.truncate(0)
            for path in (out / SCREENSHOTS).glob("*") if overwrite else ():
                if IMAGE_NAME.fullmatch(path.name):
                    path.unlink()
            return cls(file, out, IndexWriter.create(out / INDEX))

    @classmethod
    def reopen(cls, out: Path, plan_changes: PlanChanges) -> Self:
        """Open the files of an earlier run to add records. Lines that are not records, such as half a line of a killed
        run, are removed. Records of earlier versions are written in the current columns.

        `plan_changes` gets the index rows of all records, in their order, and returns the new keys of records by their
        `offset`, or None to remove a record. If it raises, the records stay unchanged.

        Raises:
            ConfigError: As `create` does.
        """
        path = out / TRAJECTORIES
        with _raise_config_error(f"out: cannot write to {out}"):
            file: BinaryIO = open(path, "ab", opener=open_private)  # noqa: SIM115 - kept open
            try:
                _lock(file, out)
                _mend_last_line(file, path)
                refresh_index(out)
                changes = _find_changes(out, plan_changes)
                if changes:
                    with file:
                        file = _rewrite(out, changes)
                return cls(file, out, IndexWriter.reopen(out / INDEX))
            except BaseException:
                file.close()
                raise

    async def append(self, record: Record, images: Mapping[str, bytes]) -> None:
        """Write the images of a record, then the record. It survives the end of the process at once, and a crash of the
        machine once this returns.

        Raises:
            ExecError: If it cannot be written.
        """
        with explain_write_errors(self._out):
            for name, image in images.items():
                _write_image(self._out / name, image)
            line = encode_line(record)
            self._file.write(line)
            self._file.flush()
            self._index.append(make_index_row(record, self._size, len(line)))
            self._size += len(line)
            await anyio.to_thread.run_sync(os.fsync, self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with explain_write_errors(self._out):
            self._index.close()
            self._file.close()


@contextmanager
def open_locked(out: Path) -> Iterator[None]:
    """Hold the lock of a run, so that no other process writes it.

    Raises:
        ConfigError: If there are no trajectories, or another process writes them.
    """
    path = out / TRAJECTORIES
    with _raise_config_error(f"{out} has no {TRAJECTORIES}"):
        file = path.open("rb")
    with file:
        _lock(file, out)
        yield


def _mend_last_line(file: BinaryIO, path: Path) -> None:
    """Remove the last line of the file if it is not complete, as after a `kill -9` or on a full disk."""
    size = os.fstat(file.fileno()).st_size
    with path.open("rb") as lines:
        start, tail = size, b""
        while start > 0 and b"\n" not in tail:
            start = max(0, start - _TAIL_BYTES)
            lines.seek(start)
            tail = lines.read(size - start)
    last = tail[tail.rfind(b"\n") + 1 :]
    if last and parse_record(last)[0] is not None:
        file.write(b"\n")
        file.flush()
    elif last:
        file.truncate(size - len(last))


def _find_changes(out: Path, plan_changes: PlanChanges) -> Changes:
    changes: Changes = {}

    def iterate_rows_of_records() -> Iterator[Row]:
        for row in iterate_index(out):
            if not is_record(row):
                changes[row["offset"]] = None
                continue
            if not row.get("current", True):
                changes[row["offset"]] = (row["group"], row["sample"])
            yield row

    rows = iterate_rows_of_records()
    planned = plan_changes(rows)
    for _ in rows:  # as many as the plan has left
        pass
    return changes | planned


def _rewrite(out: Path, changes: Changes) -> BinaryIO:
    """Replace the files of a run by new ones with these changes. Return the new trajectories, locked and open."""
    path, aside, index_aside = out / TRAJECTORIES, out / f".{TRAJECTORIES}.new", out / f".{INDEX}.new"
    file = open(aside, "wb", opener=open_private)  # noqa: SIM115 - kept open
    try:
        _lock(file, out)
        index = IndexWriter.create(index_aside)
        try:
            with path.open("rb") as earlier:
                for row in iterate_index(out):
                    _copy_line(row, changes, earlier, file, index)
        finally:
            index.close()
        file.flush()
        os.fsync(file.fileno())
        (out / INDEX).unlink()
        aside.replace(path)
        os.utime(index_aside)
        index_aside.replace(out / INDEX)
    except BaseException:
        file.close()
        aside.unlink(missing_ok=True)
        index_aside.unlink(missing_ok=True)
        raise
    return file


def _copy_line(row: Row, changes: Changes, earlier: BinaryIO, file: BinaryIO, index: IndexWriter) -> None:
    key = changes.get(row["offset"], (row.get("group"), row.get("sample")))
    if key is None:
        return
    earlier.seek(row["offset"])
    line, offset = earlier.read(row["length"]), file.tell()
    if row["offset"] in changes:
        record, _ = parse_record(line)
        changed = {**(record or {}), "group": key[0], "sample": key[1]}
        line = encode_line(changed)
        row = make_index_row(changed, offset, len(line))
    file.write(line)
    index.append({**row, "offset": offset, "length": len(line)})


def _write_image(path: Path, image: bytes) -> None:
    make_directory(path.parent)
    with open(path, "wb", opener=open_private) as file:
        file.write(image)


def iterate_records(out: Path) -> Iterator[tuple[int, Row | None]]:
    """Yield the records of a run in the order of the file, each with the offset of its line. A line that is not a
    record yields None.

    Raises:
        ConfigError: If there are no trajectories.
    """
    with _raise_config_error(f"{out} has no {TRAJECTORIES}"), (out / TRAJECTORIES).open("rb") as file:
        offset = 0
        for line in file:
            yield offset, parse_record(line)[0]
            offset += len(line)


def read_records(out: Path) -> Iterator[Row]:
    """Return an iterator over the records of a run, in the order in which its prompts ended.

    Raises:
        ConfigError: If there are no trajectories.
    """
    return (record for _, record in iterate_records(out) if record is not None)


def iterate_rows(out: Path) -> Iterator[Row]:
    """Yield the index row of each line of a run: the small columns of a record, its `offset` and its `length`. A line
    that is not a record has no columns (`index.is_record`).

    Raises:
        ConfigError: If there are no trajectories.
    """
    with _raise_config_error(f"{out} has no {TRAJECTORIES}"):
        yield from iterate_index(out)


def read_rows(out: Path) -> tuple[list[Row], int]:
    """Return the index rows of the records ordered by prompt and sample, and the number of lines that are not records.

    Raises:
        ConfigError: If there are no trajectories.
    """
    rows, broken = [], 0
    for row in iterate_rows(out):
        if is_record(row):
            rows.append(row)
        else:
            broken += 1
    return sorted(rows, key=lambda row: (int(row["prompt_index"]), int(row["sample"]))), broken


def read_record_at(lines: BinaryIO, offset: int) -> Row:
    """Return the record whose line begins at this offset, as given by `iterate_rows`."""
    lines.seek(offset)
    return parse_record(lines.readline())[0] or {"conversations": []}


def _lock(file: BinaryIO, out: Path) -> None:
    """Lock the file until the process ends. Some cluster file systems have no locks; there, the user must run one
    process at a time.
    """
    try:
        is_ours = lock_file(file)
    except OSError:
        return
    if not is_ours:
        file.close()
        raise ConfigError(f"out: another process is writing the results in {out}")


@contextmanager
def _raise_config_error(why: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{why}: {error.strerror or error}") from error
