"""The task: one row of a dataset, and the validation of its entries."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from hermes_agent import Message
from hermes_agent.scoring import ScoreIn, check_inside
from hermes_batch.digests import digest_line
from hermes_batch.prompt_messages import check_messages
from hermes_batch.sampling import check_sampling
from hermes_exec import ConfigError, ProfileConfig

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_NULL_CONTENTS = (None, {"base64": None})
Paths = TypeVar("Paths", list[str], list[str] | None)


class Task(BaseModel):
    """One prompt of a dataset. `index` counts prompts from 0, and `place` names the row: "line 7" of a file of lines.

    `group` identifies the content of the prompt without its `id`, `metadata` and `solution`: a digest, and `-N` for the
    N-th further prompt with the same content. The samples of a prompt are one group. `row` is the row as it was read.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    index: int
    place: str
    group: str = ""
    row: Any = Field(default=None, repr=False, exclude=True)
    prompt: str | None = Field(default=None, min_length=1)
    messages: list[Message] | None = None
    system: str | None = None
    id: str | None = None
    image: str | None = Field(default=None, min_length=1)
    docker_image: str | None = Field(default=None, min_length=1)
    profile: str | None = None
    network: bool | None = None
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    tree: Path | None = Field(default=None, strict=False)
    files: dict[str, str | bytes] = Field(default_factory=dict)
    setup: str | None = None
    toolsets: list[str] | None = None
    max_turns: int | None = Field(default=None, ge=1)
    deadline_s: float | None = Field(default=None, gt=0)
    sampling: dict[str, Any] = Field(default_factory=dict)
    check: str | None = None
    check_files: dict[str, str | bytes] = Field(default_factory=dict)
    check_timeout_s: float | None = Field(default=None, gt=0)
    score_in: ScoreIn | None = None
    keep: list[str] | None = None
    solution: str | None = None
    collect: list[str] = Field(default_factory=list)
    metadata: dict[str, Any] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """The id, or a name made of the index."""
        return self.id if self.id is not None else f"task-{self.index}"

    @cached_property
    def digest(self) -> str:
        """The digest of the row that earlier versions wrote. Few runs need it: it is computed at its first use."""
        return digest_line(self.row) if isinstance(self.row, Mapping) else self.group

    @property
    def beginning(self) -> list[Message]:
        """The messages that begin the conversation."""
        messages: list[Message] = self.messages or [{"role": "user", "content": self.prompt or ""}]
        return messages if self.system is None else [{"role": "system", "content": self.system}, *messages]

    @property
    def container_image(self) -> str | None:
        """The image of this prompt, by either name."""
        return self.image or self.docker_image

    @field_validator("id", mode="before")
    @classmethod
    def _convert_name(cls, name: object) -> object:
        return str(name) if isinstance(name, int) and not isinstance(name, bool) else name

    @field_validator("max_turns", mode="before")
    @classmethod
    def _convert_whole(cls, number: object) -> object:
        """Return an integer for a whole float: columns of integers with nulls become floats in some tables."""
        return int(number) if isinstance(number, float) and number.is_integer() else number

    @field_validator("messages")
    @classmethod
    def _check_messages(cls, messages: list[Message] | None) -> list[Message] | None:
        return None if messages is None else check_messages(messages)

    @field_validator("prompt", "system", "setup", "check", "solution")
    @classmethod
    def _check_text(cls, text: str | None) -> str | None:
        if text is None:
            return None
        if not text or text.isspace():
            raise ValueError("is blank")
        if "\0" in text:
            raise ValueError("has a NUL byte")
        return text

    @field_validator("env", "sampling", mode="before")
    @classmethod
    def _drop_nulls(cls, entries: object) -> object:
        """Remove null entries, which table writers add to give all rows the same names."""
        if not isinstance(entries, dict):
            return entries
        return {name: value for name, value in entries.items() if value is not None}

    @field_validator("files", "check_files", mode="before")
    @classmethod
    def _decode_files(cls, files: object) -> object:
        """Decode binary files, and remove null entries."""
        if not isinstance(files, dict):
            return files
        return {
            path: content if isinstance(content, str) else _decode_content(path, content)
            for path, content in files.items()
            if content not in _NULL_CONTENTS
        }

    @field_validator("files", "check_files")
    @classmethod
    def _check_files(cls, files: dict[str, str | bytes]) -> dict[str, str | bytes]:
        for path, content in files.items():
            check_inside(path)
            if parent := next((each for each in _parents(path) if each in files), None):
                raise ValueError(f"{parent!r} is a file and the directory of {path!r}")
            if _has_surrogate(path) or (isinstance(content, str) and _has_surrogate(content)):
                raise ValueError(f"{path!r} has an unpaired surrogate, which is not a character")
        return files

    @field_validator("keep", "collect")
    @classmethod
    def _check_paths(cls, paths: Paths) -> Paths:
        for path in paths or ():
            check_inside(path)
        return paths

    @field_validator("env")
    @classmethod
    def _check_variables(cls, env: dict[str, str]) -> dict[str, str]:
        try:
            ProfileConfig(env=env)
        except ConfigError as error:
            raise ValueError(str(error).removeprefix("env: ")) from None
        return env

    @field_validator("sampling")
    @classmethod
    def _check_parameters(cls, sampling: dict[str, Any]) -> dict[str, Any]:
        check_sampling(sampling)
        return sampling

    @model_validator(mode="after")
    def _check_combination(self) -> Task:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if self.system is not None and self.messages and self.messages[0]["role"] == "system":
            raise ValueError("give either system or a system message at the beginning of messages")
        if self.image and self.docker_image and self.image != self.docker_image:
            raise ValueError("image and docker_image differ")
        if self.keep is not None and self.score_in not in (None, "sealed"):
            raise ValueError("keep requires score_in 'sealed'")
        return self


def _parents(path: str) -> Iterator[str]:
    """Yield the directories of a path, which has no empty part."""
    end = path.rfind("/")
    while end > 0:
        yield path[:end]
        end = path.rfind("/", 0, end)


def _has_surrogate(text: str) -> bool:
    return not text.isascii() and _SURROGATE.search(text) is not None


def _decode_content(path: str, content: object) -> bytes:
    """Return the bytes of `{"base64": text}`."""
    text = content.get("base64") if isinstance(content, dict) and len(content) == 1 else None
    if not isinstance(text, str):
        raise ValueError(f'{path!r} is neither a text nor {{"base64": text}}')
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError(f"{path!r} is not base64") from None
