"""Reads rows from Arrow tables: Parquet files, and data sets of the `datasets` library."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol, cast

from hermes_batch.rows.row import ParsedRow
from hermes_exec.errors import ConfigError

_BATCH_ROWS = 256


class _Batch(Protocol):
    """A part of a table, as pyarrow has it."""

    num_rows: int

    def slice(self, offset: int, length: int) -> _Batch: ...

    def to_pylist(self, *, maps_as_pydicts: str | None = None) -> list[dict[str, Any]]: ...


def read_parquet(path: Path) -> Iterator[ParsedRow]:
    """Yield the rows of a Parquet file in their order, a batch of them in memory at a time.

    Raises:
        ConfigError: If pyarrow is not installed, or the file is not Parquet.
    """
    try:
        from pyarrow import ArrowException  # type: ignore[import-untyped]
        from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigError("Parquet needs pyarrow. Run: pip install 'hermes-exec[batch]'") from None
    try:
        with ParquetFile(path) as file:
            yield from _read_batches(cast("Iterable[_Batch]", file.iter_batches(batch_size=_BATCH_ROWS)))
    except ArrowException as error:
        raise ConfigError(f"cannot read the dataset {path}: {error}") from error


def read_hub(path: str, name: str | None, split: str | None) -> Iterator[ParsedRow]:
    """Yield the rows of a split of a data set, from a local directory or the Hugging Face hub.

    Args:
        path: The directory, or the name on the hub.
        name: The configuration of the data set. None: its only one.
        split: The split, such as `train` or `train[:100]`. None: its only one.

    Raises:
        ConfigError: If `datasets` is not installed, or the data set cannot be loaded.
    """
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigError("hf: needs datasets. Run: pip install 'hermes-exec[hf]'") from None
    source = ":".join(part for part in ("hf", path, name, split) if part)
    try:
        loaded = _load_saved(path, split)
        if loaded is None:
            loaded = datasets.load_dataset(path, name, split=split)
    except Exception as error:  # the library raises errors of many packages
        raise ConfigError(f"cannot load {source}: {type(error).__name__}: {error}") from error
    if isinstance(loaded, datasets.DatasetDict):
        if len(loaded) != 1:
            splits = ", ".join(loaded)
            raise ConfigError(f"{source} has the splits {splits}: name one, such as {source}:{next(iter(loaded))}")
        (loaded,) = loaded.values()
    yield from _read_batches(loaded.with_format("arrow").iter(_BATCH_ROWS))


def _load_saved(path: str, split: str | None) -> Any:  # noqa: ANN401 - a class of a package that may be missing
    """Return a data set that `save_to_disk` has written, or None if the directory holds none."""
    import datasets

    directory = Path(path)
    if not any((directory / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return None
    saved = datasets.load_from_disk(path)
    if split is None:
        return saved
    if not isinstance(saved, datasets.DatasetDict):
        raise ValueError("it has no splits")
    if split not in saved:
        raise ValueError(f"it has the splits {', '.join(saved)}")
    return saved[split]


def _read_batches(batches: Iterable[_Batch]) -> Iterator[ParsedRow]:
    done = 0
    for batch in batches:
        try:
            rows = batch.to_pylist(maps_as_pydicts="strict")
        except (KeyError, ValueError):  # of one or more of its rows
            yield from _read_singly(batch, done)
            rows = []
        for number, row in enumerate(rows, done + 1):
            yield _make_row(number, row)
        done += batch.num_rows


def _read_singly(batch: _Batch, done: int) -> Iterator[ParsedRow]:
    """Yield the rows of a batch, each read by itself."""
    for at in range(batch.num_rows):
        number = done + at + 1
        try:
            (row,) = batch.slice(at, 1).to_pylist(maps_as_pydicts="strict")
        except (KeyError, ValueError) as error:
            yield ParsedRow(f"row {number}", {}, f"cannot be read: {error.args[0]}")
        else:
            yield _make_row(number, row)


def _make_row(number: int, row: dict[str, Any]) -> ParsedRow:
    try:
        return ParsedRow(f"row {number}", {column: _convert(value) for column, value in row.items()})
    except ValueError as error:
        return ParsedRow(f"row {number}", {}, str(error))


def _convert(value: object) -> object:
    """Return a value as JSON has it: bytes as `{"base64": …}`, times as ISO texts, and NaN as None.

    Raises:
        ValueError: If JSON has no such value.
    """
    if isinstance(value, str | bool | int | None):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise ValueError(f"has the number {value}, which a record cannot hold")
        return None if math.isnan(value) else value
    if isinstance(value, dict):
        return {str(key): _convert(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_convert(part) for part in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise ValueError(f"has a value of the type {type(value).__name__}, which a record cannot hold")
