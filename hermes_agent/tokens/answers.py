"""What a server of token ids may answer: every part is checked, as nothing that it says can be taken for granted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from hermes_agent.models.endpoint import BadAnswer

_MAX_ID = 2**31
# vLLM says -9999 for what it cannot tell. Servers compute in float32 and lower: a certain token may come out above 0.
_LOWEST, _HIGHEST = -1e9, 1e-2


class Sample(NamedTuple):
    """What a server sampled: at least one id, the natural logarithm of the probability of each (None: the server gave
    none), and why it stopped. `ids` have the token that ended the turn, where the server gives it.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish: Literal["stop", "length"]


def validate_sample(ids: object, logprobs: object, finish: object, max_tokens: int) -> Sample:
    """Whatever a server gave, as what it has to be. Raises BadAnswer."""
    numbers, values = get_list(ids, "the ids"), get_list(logprobs, "the log-probabilities")
    if not all(type(number) is int and 0 <= number < _MAX_ID for number in numbers):
        raise BadAnswer("an id is no whole number of at least 0")
    if not 1 <= len(numbers) <= max_tokens:
        raise BadAnswer(f"the server sampled {len(numbers)} ids, when 1 to {max_tokens} were asked for")
    if len(values) != len(numbers):
        raise BadAnswer(f"the server gave {len(values)} log-probabilities for {len(numbers)} ids")
    if not all(type(value) in (int, float) and _LOWEST < value < _HIGHEST for value in values):
        raise BadAnswer("a log-probability is no finite number up to 0")
    if finish != "stop" and finish != "length":
        raise BadAnswer(f"the server ended its answer with {finish!r}, not with stop or length")
    return Sample(tuple(numbers), tuple(map(float, values)), finish)


def get_field(value: object, name: str, *default: object) -> object:
    """The field of an object of the answer; `default` where it may be left out."""
    if not isinstance(value, dict) or (name not in value and not default):
        raise BadAnswer(f"the answer has no field {name}")
    return value.get(name, *default)


def get_list(value: object, name: str) -> list[Any]:
    """A list of the answer; `name` is for the error."""
    if not isinstance(value, list):
        raise BadAnswer(f"{name} of the answer are no list")
    return value


def get_single(value: object, name: str) -> object:
    """The one entry of a list."""
    if not isinstance(value, list) or len(value) != 1:
        raise BadAnswer(f"{name} is no list of one entry")
    return value[0]


def read_token(value: object) -> tuple[int, object]:
    """The one token of an object, and its log-probability."""
    if not isinstance(value, dict) or len(value) != 1:
        raise BadAnswer("the log-probabilities of a token are not of that one alone")
    number, logprob = next(iter(value.items()))
    if not number.isascii() or not number.isdecimal() or len(number) > 10:
        raise BadAnswer("a token id is no number")
    return int(number), logprob


def check_prompt(continued: object, sent: Sequence[int]) -> None:
    """Raise BadAnswer when the server tells that it continued other ids than those that it was sent."""
    if continued is not None and continued != list(sent):
        raise BadAnswer("the server continued another prompt than the one that it was sent")
