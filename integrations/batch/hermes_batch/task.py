"""The task: one row of a dataset, and the validation of its entries."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from hermes_agent import Message
from hermes_agent.scoring import ScoreIn, check_inside
from hermes_batch.prompt_messages import check_messages

_SURROGATE = re.compile(r"[\ud800-\udfff]")
Paths = TypeVar("Paths", dict[str, str], list[str] | None)


class Task(BaseModel):
    """One prompt of a dataset. `index` counts prompts from 0, and `place` names the row: "line 7" of a file of lines.

    `digest` identifies the content of the line: a record belongs to this task if its index and digest are the same.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    index: int
    place: str
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
