"""Checks every part of a token server's answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from hermes_agent.models.endpoint import BadAnswer

_MAX_ID = 2**31
# vLLM returns -9999 for unknown values. Servers compute in float32 or less, so a certain token may be slightly above 0.
_LOWEST, _HIGHEST = -1e9, 1e-2


class Sample(NamedTuple):
    """The sample of a server.

    Attributes:
        ids: At least one id, with the token that ended the turn if the server returns it.
        logprobs: The natural logarithms of their probabilities. None: the server returned none.
        finish: The reason for the stop.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish: Literal["stop", "length"]


def validate_sample(ids: object, logprobs: object, finish: object, max_tokens: int) -> Sample:
    """Return a server's values as a Sample. Raise BadAnswer if they are invalid."""
    numbers, values = get_list(ids, "the ids"), get_list(logprobs, "the log-probabilities")
    if not all(type(number) is int and 0 <= number < _MAX_ID for number in numbers):
        raise BadAnswer("an id is not a whole number of at least 0")
    if not 1 <= len(numbers) <= max_tokens:
        raise BadAnswer(f"the server sampled {len(numbers)} ids, not 1 to {max_tokens}")
    if len(values) != len(numbers):
        raise BadAnswer(f"the server returned {len(values)} log-probabilities for {len(numbers)} ids")
    if not all(type(value) in (int, float) and _LOWEST < value < _HIGHEST for value in values):
        raise BadAnswer("a log-probability is not a finite number up to 0")
    if finish != "stop" and finish != "length":
        raise BadAnswer(f"the server ended its answer with {finish!r}, not with stop or length")
    return Sample(tuple(numbers), tuple(map(float, values)), finish)


def get_field(value: object, name: str, *default: object) -> object:
    """Return a field of an object of the answer. `default` is for a field that may be left out."""
    if not isinstance(value, dict) or (name not in value and not default):
        raise BadAnswer(f"the answer has no field {name}")
    return value.get(name, *default)


def get_list(value: object, name: str) -> list[Any]:
    """Return a list of the answer. `name` is for the error."""
    if not isinstance(value, list):
        raise BadAnswer(f"{name} of the answer are not a list")
    return value


def get_single(value: object, name: str) -> object:
    """Return the only entry of a list."""
    if not isinstance(value, list) or len(value) != 1:
        raise BadAnswer(f"{name} is not a list of one entry")
    return value[0]


def read_token(value: object) -> tuple[int, object]:
    """Return the only token of an object, and its log-probability."""
    if not isinstance(value, dict) or len(value) != 1:
        raise BadAnswer("the log-probabilities of a token contain other tokens")
    number, logprob = next(iter(value.items()))
    if not number.isascii() or not number.isdecimal() or len(number) > 10:
        raise BadAnswer("a token id is not a number")
    return int(number), logprob


def check_prompt(continued: object, sent: Sequence[int]) -> None:
    """Raise BadAnswer if the server reports that it continued other ids than it was sent."""
    if continued is not None and continued != list(sent):
        raise BadAnswer("the server continued another prompt than it was sent")
