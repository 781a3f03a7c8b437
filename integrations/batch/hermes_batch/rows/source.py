"""Selects the reader of a dataset, and gives its columns the names of entries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hermes_batch.rows.arrow_rows import read_hub, read_parquet
from hermes_batch.rows.csv_rows import read_csv
from hermes_batch.rows.json_rows import read_json
from hermes_batch.rows.row import ParsedRow, Row
from hermes_exec.errors import ConfigError

Dataset = Path | str
"""A file, or `hf:PATH[:CONFIGURATION][:SPLIT]`."""

_BUFFER_BYTES = 1 << 20
_HUB = re.compile(r"hf:(?P<path>[^:]+)(?::(?P<name>[^:\[\]]+))??(?::(?P<split>[^:\[\]]+(?:\[[^\]]*\])?))?")


class HubSource(NamedTuple):
    """The parts of `hf:PATH[:CONFIGURATION][:SPLIT]`."""

    path: str
    name: str | None
    split: str | None

    def __str__(self) -> str:
        return ":".join(part for part in ("hf", *self) if part)


def parse_dataset(dataset: Dataset) -> Path | HubSource:
    """Return the file, or the parts of an `hf:` name.

    Raises:
        ConfigError: If an `hf:` name has another form.
    """
    if not str(dataset).startswith("hf:"):
        return Path(dataset)
    match = _HUB.fullmatch(str(dataset))
    if match is None:
        raise ConfigError(f"{str(dataset)!r} is not hf:PATH:SPLIT or hf:PATH:CONFIGURATION:SPLIT")
    return HubSource(match["path"], match["name"], match["split"])


def resolve_dataset(dataset: Dataset) -> str:
    """Return the name of the dataset from every directory."""
    source = parse_dataset(dataset)
    if isinstance(source, Path):
        return str(source.resolve())
    local = Path(source.path)
    return str(source._replace(path=str(local.resolve())) if local.is_dir() else source)


def directory_of(dataset: Dataset) -> Path | None:
    """Return the directory that the trees of a dataset are in, or None if it is not on this host."""
    source = parse_dataset(dataset)
    if isinstance(source, Path):
        return source.parent
    return local if (local := Path(source.path)).is_dir() else None


def read_rows(dataset: Dataset, columns: Mapping[str, str] | None = None) -> Iterator[ParsedRow]:
    """Yield the rows of a dataset in their order, without holding more than a part of it in memory.

    Args:
        dataset: A file: `.csv`, `.parquet`, or any other name for JSON lines or one JSON array. Or
            `hf:PATH[:CONFIGURATION][:SPLIT]`, a local directory or a name on the Hugging Face hub.
        columns: Entry to the column that has its values. A column of the entry's own name is then left out.

    Raises:
        ConfigError: If the dataset cannot be read, or a package for its format is missing.
    """
    for parsed in _read(dataset):
        if parsed.error or not columns:
            yield parsed
            continue
        try:
            yield parsed._replace(row=_rename(parsed.row, columns))
        except ValueError as error:
            yield ParsedRow(parsed.place, {}, str(error))


def _read(dataset: Dataset) -> Iterator[ParsedRow]:
    source = parse_dataset(dataset)
    if isinstance(source, HubSource):
        yield from read_hub(*source)
        return
    try:
        with source.open("rb", buffering=_BUFFER_BYTES) as file:
            if source.suffix == ".parquet":
                yield from read_parquet(source)
            else:
                yield from (read_csv if source.suffix == ".csv" else read_json)(file)
    except OSError as error:
        raise ConfigError(f"cannot read the dataset {source}: {error.strerror or error}") from error


def _rename(row: Row, columns: Mapping[str, str]) -> Row:
    for column in columns.values():
        if column not in row:
            raise ValueError(f"has no column {column!r} (it has {', '.join(sorted(row)) or 'none'})")
    rest = {name: value for name, value in row.items() if name not in columns and name not in columns.values()}
    return {**{entry: row[column] for entry, column in columns.items()}, **rest}
