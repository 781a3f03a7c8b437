"""Reads and validates a file of prompts, before anything is started.

One JSON object a line, blank lines aside. `prompt` is required; known besides: `id`; `image` or `docker_image` (the
container image of this prompt); `cwd` (where the terminal starts); `tree` (a directory beside the file whose content
is put into the workspace); `files` (path in the workspace to text); `check` (a shell command that is run after the
episode; where it ends with 0 the task is solved), with `check_files` (path to text, put in when it runs, over what the
model left), `score_in` and `keep` (see `hermes_agent.Scoring`). Other entries are left alone.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from hermes_agent.scoring import ScoreIn, check_inside
from hermes_exec.errors import ConfigError

_REPORTED = 10
Paths = TypeVar("Paths", dict[str, str], list[str] | None)


class Task(BaseModel):
    """One line of the file. `index` counts prompts from 0, `line` the lines of the file from 1.

    `digest` stands for all that the line asks: a record is of this task when it has the same index and digest.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    index: int
    line: int
    digest: str = ""
    prompt: str = Field(min_length=1)
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

    @property
    def name(self) -> str:
        """The id, or one made of the index."""
        return self.id if self.id is not None else f"task-{self.index}"

    @field_validator("prompt", "check")
    @classmethod
    def _text(cls, text: str | None) -> str | None:
        if text is not None and not text.strip():
            raise ValueError("is blank")
        if text is not None and "\0" in text:
            raise ValueError("has a NUL byte")
        return text

    @field_validator("files", "check_files", "keep")
    @classmethod
    def _inside(cls, paths: Paths) -> Paths:
        for path in paths or ():
            check_inside(path)
        return paths

    @model_validator(mode="after")
    def _together(self) -> Task:
        if self.image and self.docker_image and self.image != self.docker_image:
            raise ValueError("image and docker_image differ")
        if self.keep is not None and self.score_in == "slot":
            raise ValueError("keep is for score_in 'sealed'")
        if self.check is None and (self.check_files or self.score_in or self.keep is not None):
            raise ValueError("check_files, score_in and keep belong to a check, and there is none")
        return self

    @property
    def container_image(self) -> str | None:
        """The image of this prompt, by either name."""
        return self.image or self.docker_image


def read_dataset(path: Path, limit: int | None = None) -> list[Task]:
    """The prompts of a file, at most `limit` of them. Raises ConfigError that names the lines that are wrong."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the dataset {path}: {error.strerror or error}") from error
    tasks: list[Task] = []
    wrong: list[str] = []
    for number, raw in enumerate(data.split(b"\n"), 1):
        if not raw.strip():
            continue
        try:
            tasks.append(_task(raw, number, len(tasks), path.parent))
        except ValueError as error:
            wrong.append(f"line {number}: {error}")
    if wrong:
        more = f"\n… and {len(wrong) - _REPORTED} more" if len(wrong) > _REPORTED else ""
        raise ConfigError(f"the dataset {path} is wrong:\n" + "\n".join(wrong[:_REPORTED]) + more)
    if not tasks:
        raise ConfigError(f"the dataset {path} has no prompt")
    return tasks[:limit]


def _task(raw: bytes, line: int, index: int, beside: Path) -> Task:
    try:
        entry = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} (column {error.colno})") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(entry, dict):
        raise ValueError("is not a JSON object")
    if "prompt" not in entry:
        raise ValueError(f"has no entry prompt (it has {', '.join(sorted(entry)) or 'none'})")
    try:
        task = Task.model_validate({**entry, "index": index, "line": line, "digest": _digest(entry)})
    except ValidationError as error:
        raise ValueError("; ".join(_told(detail) for detail in error.errors())) from error
    return task if task.tree is None else task.model_copy(update={"tree": _tree(beside, task.tree)})


def _digest(entry: dict[str, object]) -> str:
    """The digest of the known entries, whatever their order; of a tree only the name counts."""
    asked = {name: value for name, value in entry.items() if name in Task.model_fields}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]


def _tree(beside: Path, tree: Path) -> Path:
    """The path of a tree, which must lie beside the file: a foreign dataset must not read other files here."""
    here, there = beside.resolve(), (beside / tree).resolve()
    if not there.is_relative_to(here) or there == here:
        raise ValueError(f"tree: {str(tree)!r} is not inside of the dataset's directory")
    if not there.is_dir():
        raise ValueError(f"tree: {str(tree)!r} is not a directory")
    return there


def _told(detail: ErrorDetails) -> str:
    where = ".".join(str(part) for part in detail["loc"])
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
