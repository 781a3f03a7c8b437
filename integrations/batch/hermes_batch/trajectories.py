"""The file of results: one line a record, written as prompts end, read one at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import anyio.to_thread

from hermes_batch.columns import upgrade_row
from hermes_batch.images import IMAGE_NAME, SCREENSHOTS
from hermes_batch.record import Record
from hermes_batch.settings import explain_write_errors
from hermes_exec.errors import ConfigError
from hermes_exec.file_lock import lock_file
from hermes_exec.private_files import make_directory, private

TRAJECTORIES = "trajectories.jsonl"
_LARGE_COLUMNS = frozenset({"conversations", "messages", "tools"})
Row = dict[str, Any]
"""A record as it was read, in the columns of today: what another version or program wrote has perhaps not all fields of
a `Record`.
"""


class Trajectories:
    """`trajectories.jsonl` of a run that goes on. One process writes it at a time, which a lock on it ensures."""

    def __init__(self, file: BinaryIO, out: Path) -> None:
        self._file, self._out = file, out

    @classmethod
    def create(cls, out: Path, *, overwrite: bool) -> Self:
        """A new file in `out`. Raises ConfigError when there is one already and `overwrite` is not given, when another
        process writes it, or when it cannot be written.
        """
        with _raise_config_error(f"out: cannot write to {out}"):
            make_directory(out)
            file = open(out / TRAJECTORIES, "ab" if overwrite else "xb", opener=private)  # noqa: SIM115 - a field
            _lock(file, out)
            file.truncate(0)
            for path in (out / SCREENSHOTS).glob("*") if overwrite else ():
                if IMAGE_NAME.fullmatch(path.name):
                    path.unlink()
        return cls(file, out)

    @classmethod
    def reopen(cls, out: Path, keep: Callable[[Row], bool]) -> Self:
        """The file of an earlier run, for more records: without the lines that are no record, such as half a line of a
        killed run, and without the records that `keep` refuses.

        `keep` sees each record once; when it raises, the file is as it was. Raises ConfigError as `create` does.
        """
        path, aside = out / TRAJECTORIES, out / f".{TRAJECTORIES}.new"
        with _raise_config_error(f"out: cannot write to {out}"), open(path, "ab", opener=private) as earlier:
            _lock(earlier, out)
            file = open(aside, "wb", opener=private)  # noqa: SIM115 - a field
            try:
                _lock(file, out)
                for _, record in iterate_records(out):
                    if record is not None and keep(record):
                        file.write(_encode_line(record))
                file.flush()
                os.fsync(file.fileno())
                aside.replace(path)
            except BaseException:
                file.close()
                aside.unlink(missing_ok=True)
                raise
        return cls(file, out)

    async def append(self, record: Record, images: Mapping[str, bytes]) -> None:
        """Write a record, and before it the images that it names, by their paths. It outlives the process at once, and
        the machine when this returns. Raises ExecError when it cannot be written.
        """
        with explain_write_errors(self._out):
            for name, image in images.items():
                _write_image(self._out / name, image)
            self._file.write(_encode_line(record))
            self._file.flush()
            await anyio.to_thread.run_sync(os.fsync, self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with explain_write_errors(self._out):
            self._file.close()


def _write_image(path: Path, image: bytes) -> None:
    make_directory(path.parent)
    with open(path, "wb", opener=private) as file:
        file.write(image)


def iterate_records(out: Path) -> Iterator[tuple[int, Row | None]]:
    """The records of a run in the order of the file, each with the offset of its line; None for a line that is none.

    Raises ConfigError when there are no trajectories.
    """
    with _raise_config_error(f"{out} has no {TRAJECTORIES}"), (out / TRAJECTORIES).open("rb") as file:
        offset = 0
        for line in file:
            yield offset, _parse_record(line)
            offset += len(line)


def read_records(out: Path) -> Iterator[Row]:
    """The records of a run, one at a time, in the order in which its prompts ended.

    Raises ConfigError when there are no trajectories.
    """
    return (record for _, record in iterate_records(out) if record is not None)


def read_rows(out: Path) -> tuple[list[Row], int]:
    """The records by prompt, without their conversations and messages, and the number of lines that are none."""
    rows, broken = [], 0
    for _, record in iterate_records(out):
        if record is None:
            broken += 1
        else:
            rows.append({name: value for name, value in record.items() if name not in _LARGE_COLUMNS})
    return sorted(rows, key=lambda row: int(row["prompt_index"])), broken


def read_record_at(lines: BinaryIO, offset: int) -> Row:
    """The record whose line begins there, as `iterate_records` said."""
    lines.seek(offset)
    return _parse_record(lines.readline()) or {"conversations": []}


def _parse_record(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(row, dict) and isinstance(row.get("conversations"), list)
    return upgrade_row(row) if whole and isinstance(row.get("prompt_index"), int) else None


def _encode_line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _lock(file: BinaryIO, out: Path) -> None:
    """A lock that ends with the process. Some file systems of clusters have none: there the user sees to it."""
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
