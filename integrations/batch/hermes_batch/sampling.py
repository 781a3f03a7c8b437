"""Validation of sampling parameters, before a request has them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping

_RESERVED = frozenset({"messages", "tools", "model", "n", "stream", "stream_options"})
"""Parameters that the run sets itself."""
_LEAST = {
    "temperature": 0,
    "top_p": 0,
    "min_p": 0,
    "top_k": -1,
    "max_tokens": 1,
    "max_completion_tokens": 1,
    "repetition_penalty": 0,
    "frequency_penalty": -2,
    "presence_penalty": -2,
}
"""The least values of numbers."""
_INTEGERS = frozenset({"top_k", "max_tokens", "max_completion_tokens", "seed"})
_OTHERS = (
    *("seed", "stop", "logit_bias", "logprobs", "top_logprobs", "response_format", "tool_choice", "user", "metadata"),
    *("parallel_tool_calls", "reasoning", "reasoning_effort", "verbosity", "service_tier", "provider", "extra_body"),
    *("chat_template_kwargs", "guided_json", "min_tokens", "length_penalty", "thinking"),
)
_KNOWN = (*_LEAST, *_OTHERS)
_SIMILAR = 0.85


def check_sampling(sampling: Mapping[str, object]) -> None:
    """Refuse parameters that no endpoint can accept. Unknown ones are the endpoint's own, unless they resemble a name
    that all endpoints have.

    Raises:
        ValueError: If a parameter is set by the run itself, is misspelled, or has a value that it cannot have.
    """
    for name, value in sampling.items():
        if name in _RESERVED:
            raise ValueError(f"{name!r} is set by the run itself")
        if name not in _KNOWN and (similar := difflib.get_close_matches(_fold(name), _KNOWN, 1, _SIMILAR)):
            raise ValueError(f"there is no parameter {name!r}; did you mean {similar[0]!r}?")
        if name in _LEAST or name in _INTEGERS:
            _check_number(name, value)


def _fold(name: str) -> str:
    return name.casefold().replace("-", "_")


def _check_number(name: str, value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or (name in _INTEGERS and not isinstance(value, int)):
        raise ValueError(f"{name} is {'an integer' if name in _INTEGERS else 'a number'}, not {value!r}")
    least = _LEAST.get(name)
    if least is not None and isinstance(value, int | float) and value < least:
        raise ValueError(f"{name} is at least {least}, not {value!r}")
