"""Reads JSON that a model wrote, in the arguments of a structured call and in the text of an answer, by one set of
rules.
"""

from __future__ import annotations

import json
import math
from typing import NoReturn


class DuplicateKey(ValueError):
    """Raised for an object that has the key `key` twice: it is not clear which value is meant."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} is there twice")
        self.key = key


def read_json(text: str, start: int = 0) -> tuple[object, int]:
    """Return the JSON value that begins at this very character, and where it ends.

    Raw line breaks in strings are accepted, because small models write them and the meaning is not in doubt. Raises
    JSONDecodeError for what is no JSON, DuplicateKey for an object with a key twice, ValueError for NaN, Infinity and
    numbers that no float or integer holds, and RecursionError for what is nested too deeply.
    """
    return _DECODER.raw_decode(text, start)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise DuplicateKey(key)
        result[key] = value
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _finite(text: str) -> float:
    if math.isfinite(number := float(text)):
        return number
    raise ValueError("a number is too large")


_DECODER = json.JSONDecoder(
    strict=False, object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite
)
