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
import re
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from hermes_agent import Message
from hermes_agent.scoring import ScoreIn, check_inside
from hermes_batch.prompt_messages import check_messages
from hermes_batch.rows import Row, parse_rows
from hermes_exec.config import nearest
from hermes_exec.errors import ConfigError

Extra = Literal["refuse", "metadata"]
"""The treatment of unknown entries: an error, or part of the prompt's `metadata`."""

_MAX_REPORTED = 10
_SURROGATE = re.compile(r"[\ud800-\udfff]")
Paths = TypeVar("Paths", dict[str, str], list[str] | None)


class Task(BaseModel):
    """One prompt of the file. `index` counts prompts from 0, `line` the lines of the file from 1.

    `digest` identifies the content of the line: a record belongs to this task if its index and digest are the same.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    index: int
    line: int
    digest: str = ""
    prompt: str | None = Field(default=None, min_length=1)
    messages: list[Message] | None = None
    id: str | None = None
    image: str | None = Field(default=None, min_length=1)
    docker_image: str | None = Field(default=None, min_length=1)
    cwd: str | None = None
    tree: Path | None = Field(default=None, strict=False)
    files: dict[str, str] = Field(default_factory=dict)
    check: str | None = None
    check_files: dict[str, str] = Field(default_factory=dict)
    score_in: ScoreIn | None = None
    keep: list[str] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """The id, or a name made of the index."""
        return self.id if self.id is not None else f"task-{self.index}"

    @property
    def beginning(self) -> list[Message]:
        """The messages that begin the conversation."""
        return self.messages or [{"role": "user", "content": self.prompt or ""}]

    @field_validator("id", mode="before")
    @classmethod
    def _convert_name(cls, name: object) -> object:
        return str(name) if isinstance(name, int) and not isinstance(name, bool) else name

    @field_validator("messages")
    @classmethod
    def _check_messages(cls, messages: list[Message] | None) -> list[Message] | None:
        return None if messages is None else check_messages(messages)

    @field_validator("prompt", "check")
    @classmethod
    def _check_text(cls, text: str | None) -> str | None:
        if text is not None and not text.strip():
            raise ValueError("is blank")
        if text is not None and "\0" in text:
            raise ValueError("has a NUL byte")
        return text

    @field_validator("files", "check_files", mode="before")
    @classmethod
    def _drop_nulls(cls, files: object) -> object:
        """Remove null entries, which table writers add to give all rows the same paths."""
        return {path: text for path, text in files.items() if text is not None} if isinstance(files, dict) else files

    @field_validator("files", "check_files")
    @classmethod
    def _check_characters(cls, files: dict[str, str]) -> dict[str, str]:
        for path, text in files.items():
            if _SURROGATE.search(path + text):
                raise ValueError(f"{path!r} has an unpaired surrogate, which is not a character")
        return files

    @field_validator("files", "check_files", "keep")
    @classmethod
    def _check_paths(cls, paths: Paths) -> Paths:
        for path in paths or ():
            check_inside(path)
        return paths

    @model_validator(mode="after")
    def _check_combination(self) -> Task:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if self.image and self.docker_image and self.image != self.docker_image:
            raise ValueError("image and docker_image differ")
        if self.keep is not None and self.score_in not in (None, "sealed"):
            raise ValueError("keep requires score_in 'sealed'")
        if self.check is None and (self.check_files or self.score_in or self.keep is not None):
            raise ValueError("check_files, score_in and keep require a check")
        return self

    @property
    def container_image(self) -> str | None:
        """The image of this prompt, by either name."""
        return self.image or self.docker_image


_PROMPT_FIELDS = Task.model_fields.keys() - {"index", "line", "digest"}
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
        task = Task.model_validate({**entries, "index": index, "line": line, "digest": _digest(row)})
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
