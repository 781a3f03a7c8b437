"""Reads and validates a file of prompts before anything is started.

The file has one JSON object per line (blank lines are ignored) or is one JSON array of objects. `prompt` or `messages`
(the conversation so far, in OpenAI format) is required. Other entries are optional: `id`; `image` or `docker_image`
(the container image of this prompt); `cwd` (the start directory of the terminal); `tree` (a directory next to the file
that is copied into the workspace); `files` (path in the workspace to text); `check` (a shell command that runs after
the episode; exit code 0 means solved) with `check_files` (path to text, added when it runs, over the model's files),
`score_in` and `keep` (see `hermes_agent.Scoring`); `metadata` (an object that is copied to the record). Null entries
are ignored, also in `files` and in messages. Any other entry is an error.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hermes_batch.rows import Row, parse_rows
from hermes_batch.task import Task
from hermes_exec.config import nearest
from hermes_exec.errors import ConfigError

Extra = Literal["refuse", "metadata"]
"""The treatment of unknown entries: an error, or part of the prompt's `metadata`."""

_MAX_REPORTED = 10

_PROMPT_FIELDS = Task.model_fields.keys() - {"index", "place", "digest"}
"""The entries of a prompt."""


def read_dataset(path: Path, limit: int | None = None, extra: Extra = "refuse") -> list[Task]:
    """Return the prompts of a file, at most `limit` of them.

    Unknown entries are errors, or become part of the prompt's metadata with `extra="metadata"`.

    Raises:
        ConfigError: If the file cannot be read or has errors; the message names their lines.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the dataset {path}: {error.strerror or error}") from error
    tasks: list[Task] = []
    wrong: list[str] = []
    for line, row, why in parse_rows(data):
        try:
            if why:
                raise ValueError(why)
            tasks.append(_parse_task(row, line, len(tasks), path.parent, extra))
        except ValueError as error:
            wrong.append(f"line {line}: {error}")
    if wrong:
        more = f"\n… and {len(wrong) - _MAX_REPORTED} more" if len(wrong) > _MAX_REPORTED else ""
        raise ConfigError(f"the dataset {path} is wrong:\n" + "\n".join(wrong[:_MAX_REPORTED]) + more)
    if not tasks:
        raise ConfigError(f"the dataset {path} has no prompt")
    return tasks[:limit]


def _parse_task(row: Row, line: int, index: int, directory: Path, extra: Extra) -> Task:
    unknown = row.keys() - _PROMPT_FIELDS
    if unknown and extra == "refuse":
        name = min(unknown, key=[*row].index)
        raise ValueError(f"has an unknown entry {name!r}; {nearest(name, _PROMPT_FIELDS)} (--extra metadata keeps it)")
    entries = {name: value for name, value in row.items() if name in _PROMPT_FIELDS and value is not None}
    if unknown:
        entries["metadata"] = _merge_unknown(entries.get("metadata", {}), {name: row[name] for name in unknown})
    if not entries.keys() & {"prompt", "messages"}:
        raise ValueError(f"has no entry prompt or messages (it has {', '.join(sorted(row)) or 'none'})")
    try:
        task = Task.model_validate({**entries, "index": index, "place": f"line {line}", "digest": _digest(row)})
    except ValidationError as error:
        raise ValueError("; ".join(_describe_error(detail) for detail in error.errors())) from error
    return task if task.tree is None else task.model_copy(update={"tree": _resolve_tree(directory, task.tree)})


def _merge_unknown(metadata: object, unknown: Row) -> object:
    if not isinstance(metadata, dict):
        return metadata
    if duplicates := metadata.keys() & unknown.keys():
        raise ValueError(f"has the entry {min(duplicates)!r} both in metadata and outside it")
    return {**metadata, **unknown}


def _digest(row: Row) -> str:
    """Return a digest of the entries in any order. For a tree, only its name counts."""
    entries = {name: value for name, value in row.items() if name in _PROMPT_FIELDS and name != "metadata"}
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()[:32]


def _resolve_tree(directory: Path, tree: Path) -> Path:
    """Return the path of a tree, which must be below the file's directory, so that a foreign dataset cannot read other
    local files.
    """
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
