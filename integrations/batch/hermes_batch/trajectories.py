"""The file of results: one record per line, written as prompts end and read one at a time."""

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
from hermes_exec.private_files import make_directory, open_private

TRAJECTORIES = "trajectories.jsonl"
_LARGE_COLUMNS = frozenset({"conversations", "messages", "tools"})
Row = dict[str, Any]
"""A record as read, in the current columns. A record of another version or program may lack fields of `Record`."""


class Trajectories:
    """`trajectories.jsonl` of a run in progress. A lock ensures that only one process writes it at a time."""

    def __init__(self, file: BinaryIO, out: Path) -> None:
        self._file, self._out = file, out

    @classmethod
    def create(cls, out: Path, *, overwrite: bool) -> Self:
        """Create a new file in `out`.

        Raises:
            ConfigError: If there already is one and `overwrite` is not set, if another process writes it, or if it
                cannot be written.
        """
        with _raise_config_error(f"out: cannot write to {out}"):
            make_directory(out)
            file = open(out / TRAJECTORIES, "ab" if overwrite else "xb", opener=open_private)  # noqa: SIM115 - kept open
            _lock(file, out)
            file.truncate(0)
            for path in (out / SCREENSHOTS).glob("*") if overwrite else ():
                if IMAGE_NAME.fullmatch(path.name):
                    path.unlink()
        return cls(file, out)

    @classmethod
    def reopen(cls, out: Path, keep: Callable[[Row], bool]) -> Self:
        """Open the file of an earlier run to add records. Lines that are not records, such as half a line of a killed
        run, and records that `keep` rejects are removed.

        `keep` is called once per record. If it raises, the file stays unchanged.

        Raises:
            ConfigError: As `create` does.
        """
        path, aside = out / TRAJECTORIES, out / f".{TRAJECTORIES}.new"
        with _raise_config_error(f"out: cannot write to {out}"), open(path, "ab", opener=open_private) as earlier:
            _lock(earlier, out)
            file = open(aside, "wb", opener=open_private)  # noqa: SIM115 - kept open
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
        """Write the images of a record, then the record. It survives the end of the process at once, and a crash of the
        machine once this returns.

        Raises:
            ExecError: If it cannot be written.
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
            yield offset, _parse_record(line)
            offset += len(line)


def read_records(out: Path) -> Iterator[Row]:
    """Return an iterator over the records of a run, in the order in which its prompts ended.

    Raises:
        ConfigError: If there are no trajectories.
    """
    return (record for _, record in iterate_records(out) if record is not None)


def read_rows(out: Path) -> tuple[list[Row], int]:
    """Return the records ordered by prompt, without conversations and messages, and the number of lines that are not
    records.
    """
    rows, broken = [], 0
    for _, record in iterate_records(out):
        if record is None:
            broken += 1
        else:
            rows.append({name: value for name, value in record.items() if name not in _LARGE_COLUMNS})
    return sorted(rows, key=lambda row: int(row["prompt_index"])), broken


def read_record_at(lines: BinaryIO, offset: int) -> Row:
    """Return the record whose line begins at this offset, as given by `iterate_records`."""
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
