"""Reads and validates a dataset before anything is started.

A dataset is a file of rows (JSON lines, a JSON array, CSV, Parquet) or a data set of the `datasets` library
(`hf:PATH:SPLIT`). `docs/batch.md` lists the entries of a row. Null entries are ignored, also in `files` and in
messages. Any other entry is an error, or becomes part of the prompt's `metadata`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hermes_batch.collector import pause_collector
from hermes_batch.digests import TreeDigests, digest_content
from hermes_batch.rows.json_rows import decode_json
from hermes_batch.rows.row import ParsedRow, Row
from hermes_batch.rows.source import Dataset, directory_of, read_rows
from hermes_batch.task import Task
from hermes_exec.config import nearest
from hermes_exec.errors import ConfigError

Extra = Literal["refuse", "metadata"]
"""The treatment of unknown entries: an error, or part of the prompt's `metadata`."""

CheckTask = Callable[[Task], None]
"""A function that raises ValueError if a task cannot run."""

_MAX_REPORTED = 10
_MAX_PLACES = 5
_ENTRIES = Task.model_fields.keys() - {"index", "place", "group", "row"}
"""The entries of a row."""
_STRUCTURED = frozenset(
    {"messages", "toolsets", "files", "check_files", "keep", "env", "sampling", "collect", "metadata"}
)
"""Entries that are lists or objects. A text in their place is read as JSON: tables hold free objects in this form."""
_UNTYPED = frozenset({"max_turns", "deadline_s", "check_timeout_s", "network"})
"""Entries that are numbers or booleans, which are texts in CSV."""


def read_dataset(
    dataset: Dataset,
    extra: Extra = "refuse",
    columns: Mapping[str, str] | None = None,
    check: CheckTask | None = None,
) -> list[Task]:
    """Return the tasks of a dataset.

    Args:
        dataset: A file, or `hf:PATH:SPLIT` (see `hermes_batch.rows.source.read_rows`).
        extra: The treatment of unknown entries: an error, or part of the prompt's `metadata`.
        columns: Entry to the column of the dataset that has its values.
        check: Called with each task.

    Raises:
        ConfigError: If the dataset cannot be read or has errors. The message has the first ten different errors, each
            with its first rows and the number of its further rows, and the number of all other wrong rows.
    """
    for entry in columns or ():
        if entry not in _ENTRIES:
            raise ConfigError(f"columns: a row has no entry {entry!r}; {nearest(entry, _ENTRIES)}")
    directory = directory_of(dataset)
    tasks: list[Task] = []
    errors = _Errors()
    groups = _Groups()
    for parsed in _without_collector(read_rows(dataset, columns)):
        try:
            if parsed.error:
                raise ValueError(parsed.error)
            task = _parse_task(parsed, len(tasks), directory, extra, groups)
            if check is not None:
                check(task)
            tasks.append(task)
        except ValueError as error:
            errors.add(parsed.place, str(error))
    if errors.count:
        raise ConfigError(f"the dataset {dataset} is wrong:\n{errors}")
    if not tasks:
        raise ConfigError(f"the dataset {dataset} has no prompt")
    return tasks


def _without_collector(rows: Iterator[ParsedRow]) -> Iterator[ParsedRow]:
    """Yield the rows while the garbage collector is paused."""
    with pause_collector():
        yield from rows


class _Errors:
    """The errors of a dataset. An error of many rows, such as an unknown column, is one line of the message."""

    def __init__(self) -> None:
        self.count = 0
        """The number of wrong rows."""
        self._places: dict[str, list[str]] = {}
        """The rows of each of the first errors."""

    def add(self, place: str, error: str) -> None:
        """Add the error of a row."""
        self.count += 1
        if error in self._places or len(self._places) < _MAX_REPORTED:
            self._places.setdefault(error, []).append(place)

    def __str__(self) -> str:
        lines = []
        for error, places in self._places.items():
            further = len(places) - _MAX_PLACES
            rows = f" and {further} more row{'s' if further > 1 else ''}" if further > 0 else ""
            lines.append(f"{', '.join(places[:_MAX_PLACES])}{rows}: {error}")
        rest = self.count - sum(map(len, self._places.values()))
        return "\n".join([*lines, *([f"… and {rest} more"] if rest else [])])


class _Groups:
    """Names the groups of the rows of one dataset in their order."""

    def __init__(self) -> None:
        self._trees = TreeDigests()
        self._counts: Counter[str] = Counter()

    def name_group(self, entries: Row, tree: Path | None = None) -> str:
        digest = digest_content(entries, None if tree is None else self._trees.digest_tree(tree))
        count = self._counts[digest]
        self._counts[digest] += 1
        return f"{digest}-{count}" if count else digest


def _parse_task(parsed: ParsedRow, index: int, directory: Path | None, extra: Extra, groups: _Groups) -> Task:
    row = parsed.row
    unknown = row.keys() - _ENTRIES
    if unknown and extra == "refuse":
        name = min(unknown, key=[*row].index)
        hint = f"--field ENTRY={name} renames it, --extra metadata keeps it"
        raise ValueError(f"has an unknown entry {name!r}; {nearest(name, _ENTRIES)} ({hint})")
    entries = {name: value for name, value in row.items() if name in _ENTRIES and value is not None}
    _parse_texts(entries, untyped=parsed.untyped)
    if unknown:
        entries["metadata"] = _merge_unknown(entries.get("metadata", {}), {name: row[name] for name in unknown})
    if not entries.keys() & {"prompt", "messages"}:
        names = ", ".join(sorted(name for name, value in row.items() if value is not None))
        empty = "; an empty or null entry counts as missing" if row.keys() & {"prompt", "messages"} else ""
        raise ValueError(f"has no entry prompt or messages (it has {names or 'none'}{empty})")
    identity: dict[str, object] = {"index": index, "place": parsed.place, "row": row}
    if "tree" not in entries:
        identity["group"] = groups.name_group(entries)
    try:
        task = Task.model_validate({**entries, **identity})
    except ValidationError as error:
        raise ValueError("; ".join(_describe_error(detail) for detail in error.errors())) from error
    if task.tree is None:
        return task
    tree = _resolve_tree(directory, task.tree)
    return task.model_copy(update={"tree": tree, "group": groups.name_group(entries, tree)})


def _parse_texts(entries: Row, *, untyped: bool) -> None:
    """Replace the texts of entries that are no texts by the values that they have as JSON."""
    for name, text in entries.items():
        if isinstance(text, str) and (name in _STRUCTURED or (untyped and name in _UNTYPED)):
            try:
                entries[name] = decode_json(text.lower() if name == "network" else text)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None


def _merge_unknown(metadata: object, unknown: Row) -> object:
    if not isinstance(metadata, dict):
        return metadata
    if duplicates := metadata.keys() & unknown.keys():
        raise ValueError(f"has the entry {min(duplicates)!r} both in metadata and outside it")
    return {**metadata, **unknown}


def _resolve_tree(directory: Path | None, tree: Path) -> Path:
    """Return the path of a tree, which must be below the file's directory, so that a foreign dataset cannot read other
    local files.
    """
    if directory is None:
        raise ValueError("tree: the dataset is not in a directory of this host")
    root, path = directory.resolve(), (directory / tree).resolve()
    if not path.is_relative_to(root) or path == root:
        raise ValueError(f"tree: {str(tree)!r} is not inside the dataset's directory")
    if not path.is_dir():
        raise ValueError(f"tree: {str(tree)!r} is not a directory")
    return path


def _describe_error(detail: ErrorDetails) -> str:
    where = ".".join(str(part) for part in detail["loc"])
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
