"""One JSON parser for text that a model wrote: the arguments of a structured call and the text of an answer."""

from __future__ import annotations

import json
import math
from typing import NoReturn


class DuplicateKey(ValueError):
    """An object repeats the key `key`, so the intended value is ambiguous."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} is there twice")
        self.key = key


def read_json(text: str, start: int = 0) -> tuple[object, int]:
    """Return the JSON value that begins at exactly this character, and the offset of its end.

    Raw line breaks in strings are accepted, because small models write them and their meaning is clear.

    Raises:
        JSONDecodeError: If the text is not JSON.
        DuplicateKey: If an object repeats a key.
        ValueError: If the text contains NaN, Infinity or a number out of range.
        RecursionError: If the value is nested too deeply.
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
