"""Arguments of several commands."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hermes_agent.cli.options import Strict
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


@dataclass(frozen=True)
class SelectionOptions:
    """Options that select prompts of a dataset."""

    ids: Annotated[
        str | None,
        typer.Option(
            "--ids", metavar="FILE|ID,ID", help="Use only these prompts: a file of ids, one a line, or a list."
        ),
    ] = None
    shuffle: Annotated[
        int | None, typer.Option("--shuffle", metavar="SEED", help="Use the prompts in an order drawn from this seed.")
    ] = None
    offset: Annotated[int, typer.Option("--offset", min=0, help="Leave out this many prompts at the beginning.")] = 0
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Use at most this many prompts.")] = None
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="N/COUNT", help="Use one part of the prompts, such as 2/16.")
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return the settings of `BatchConfig`.

        Raises:
            ConfigError: If the ids cannot be read.
        """
        return {**vars(self), "ids": None if self.ids is None else parse_ids(self.ids)}


def parse_ids(text: str) -> tuple[str, ...]:
    """Return the ids of `--ids`: the lines of a file, or a list with commas.

    Raises:
        ConfigError: If the file cannot be read, or there is no id.
    """
    try:
        path = Path(text)
        ids = path.read_text("utf-8").splitlines() if path.is_file() else text.split(",")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--ids: cannot read {text}: {error}") from error
    named = tuple(name.strip() for name in ids if name.strip())
    if not named:
        raise ConfigError(f"--ids: {text!r} has no id; give a file with one id a line, or ids with commas")
    return named


@dataclass(frozen=True)
class RowOptions:
    """Options of rows and their slots with the same names and values as in `DatasetConfig`."""

    extra: Annotated[
        str, typer.Option("--extra", help="Unknown entries of a prompt: `refuse` them, or keep them in its `metadata`.")
    ] = "refuse"
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Prompts to work on at a time.")] = 4
    strict: Strict = False
    score_in: Annotated[
        str,
        typer.Option(
            "--score-in",
            help="Where checks run: `sealed` (only the work, in a clean slot), `slot` (the slot as the model left "
            "it), `fork` (the same, and the check's changes are undone) or `live` (with its processes).",
        ),
    ] = "sealed"
    scorer: Annotated[
        str | None,
        typer.Option(
            "--scorer",
            metavar="FILE.py:NAME",
            help="Function of (slot, episode) or (slot, episode, task) that returns the reward, in place of checks.",
        ),
    ] = None
    check_timeout_s: Annotated[
        float, typer.Option("--check-timeout", metavar="SECONDS", help="Time limit of one check.")
    ] = 60.0
    setup_timeout_s: Annotated[
        float, typer.Option("--setup-timeout", metavar="SECONDS", help="Time limit of a prompt's `setup` command.")
    ] = 600.0


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


def read_prefill(path: Path | None) -> tuple[Any, ...]:
    """Return the messages in the file of `--prefill`.

    Raises:
        ConfigError: If the file cannot be read, or is not a list in JSON.
    """
    if path is None:
        return ()
    try:
        messages = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--prefill: cannot read {path}: {error}") from error
    if not isinstance(messages, list):
        raise ConfigError(f"--prefill: {path} is not a JSON list of messages")
    return tuple(messages)


def pool_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a pool in the form of `DatasetConfig`.

    Raises:
        ConfigError: If `backend_options` is not a mapping.
    """
    own: dict[str, Any] = {name: settings.pop(name) for name in ("backend", "image") if name in settings}
    options = settings.pop("backend_options", None) or {}
    if not isinstance(options, dict):
        raise ConfigError(f"backend_options must be a mapping, not {options!r}")
    return {**own, "backend_options": {**options, **settings}}
