"""Arguments of several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hermes_exec.errors import ConfigError

RunDirectory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a run.")]
Dataset = Annotated[
    str,
    typer.Argument(
        metavar="PROMPTS",
        help="Dataset: JSON lines, a JSON array, CSV (`.csv`) or Parquet (`.parquet`), or `hf:PATH:SPLIT` for a "
        "directory or a name on the Hugging Face hub.",
    ),
]
Fields = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        metavar="ENTRY=COLUMN",
        help="The column of the dataset with the values of an entry, such as prompt=question; may be repeated.",
    ),
]


def parse_fields(fields: list[str] | None) -> dict[str, str]:
    """Return the columns of `--field` by the entries that they are for.

    Raises:
        ConfigError: If a text is not ENTRY=COLUMN, or an entry is given twice.
    """
    columns: dict[str, str] = {}
    for field in fields or ():
        entry, equals, column = field.partition("=")
        if not equals or not entry or not column:
            raise ConfigError(f"--field takes ENTRY=COLUMN, such as prompt=question, not {field!r}")
        if entry in columns:
            raise ConfigError(f"--field: the entry {entry!r} has two columns, {columns[entry]!r} and {column!r}")
        columns[entry] = column
    return columns
