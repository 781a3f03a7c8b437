"""Validation of the answers of pools on this host: another user's program may send anything."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from hermes_exec.channel.encoding import from_wire
from hermes_exec.errors import ExecError

LONGEST_TEXT = 1 << 20
INVALID_ANSWER = "sent an invalid answer"
AnswerT = TypeVar("AnswerT", bound="PoolAnswer")


class InvalidPoolAnswer(ExecError):
    """Raised when a pool's answer is invalid."""


def _text(value: object) -> str:
    """Return a text. pydantic's own type refuses surrogate escapes, which stand for bytes that are not UTF-8."""
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise ValueError("not a text, or a text that is too long")
    return value


def _command(value: object) -> str:
    try:
        return from_wire(value, "command")
    except ExecError as error:
        raise ValueError(str(error)) from None


def _from_base64(value: object) -> bytes:
    return base64.b64decode(_text(value))


Text = Annotated[Any, PlainValidator(_text)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class PoolAnswer(BaseModel):
    """Base of all answers. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Refusal(PoolAnswer):
    """An answer that reports an error."""

    error: Text
    kind: Text = ""


class AcquiredSlot(PoolAnswer):
    """A slot that is in use."""

    id: Text
    sandbox: Text | None = None


class AcquiredSlots(PoolAnswer):
    """The answer to `slots`."""

    slots: Annotated[list[AcquiredSlot], Field(max_length=10_000)]


class RunningProcess(PoolAnswer):
    """A process of a slot."""

    pid: Count
    state: Text
    started_at: Annotated[float, Field(ge=0, lt=1e12)]
    rss_bytes: Count
    request_id: Count | None
    argv: list[Text]


class Processes(PoolAnswer):
    """The answer to `processes`."""

    processes: Annotated[list[RunningProcess], Field(max_length=100_000)]


class ViewEvent(PoolAnswer):
    """An event of `view`."""

    event: Text
    id: Count | Text | None = None
    stream: Count | None = None
    data: Annotated[Any, PlainValidator(_from_base64)] = b""
    command: Annotated[Any, PlainValidator(_command)] = ""
    exit_code: Annotated[int, Field(ge=-(1 << 31), lt=1 << 32)] | None = None
    bytes: Count = 0


def read_answer(line: bytes | bytearray, kind: type[AnswerT]) -> AnswerT | Refusal:
    """Parse the answer of a line.

    Raises:
        InvalidPoolAnswer: If it is invalid.
    """
    try:
        answer = json.loads(line)
        refused = isinstance(answer, dict) and "error" in answer
        return (Refusal if refused else kind).model_validate(answer)
    except (ValueError, ValidationError, RecursionError):
        raise InvalidPoolAnswer(f"the process that holds the slot {INVALID_ANSWER}") from None
