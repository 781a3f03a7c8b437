"""JSON values inside a longer text: decoded at a position, and written so that they can be sent."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from hermes_exec.tools import read_json

_FIRST_WINDOW = 512
_LONGEST_TOKEN = 16
_WORDS = ("true", "false", "null", "-")
_SPACE = re.compile(r"\s*+")


class JsonValue(NamedTuple):
    """A value, and the position after it."""

    value: object
    end: int


class JsonProblem(NamedTuple):
    """The reason why a text is not a JSON value, and whether the text ended before the value did."""

    why: str
    at_end: bool = False


def skip_space(text: str, position: int) -> int:
    """Return the position of the next character that is not white space, or the end of the text."""
    match = _SPACE.match(text, position)
    return match.end() if match else position


def decode(text: str, position: int) -> JsonValue | JsonProblem:
    """Return the JSON value that begins exactly at this position. Positions in `why` count from there."""
    # Not the obvious code: see docs/why-not-obvious.md ("JSON is decoded from growing windows")
    size = _FIRST_WINDOW
    while True:
        decoded = _decode_window(text[position : position + size], whole=position + size >= len(text))
        if decoded is not None:
            return decoded._replace(end=position + decoded.end) if isinstance(decoded, JsonValue) else decoded
        size *= 2


def _decode_window(window: str, *, whole: bool) -> JsonValue | JsonProblem | None:
    """Return the value at the beginning of a window. Return None if the text after the window matters."""
    try:
        value, end = read_json(window)
    except RecursionError:
        return JsonProblem("its JSON is nested too deeply")
    except json.JSONDecodeError as error:
        in_string = error.msg.startswith("Unterminated string")
        if not whole and (in_string or error.pos >= len(window) - _LONGEST_TOKEN):
            return None
        at_end = in_string or _may_continue(error.msg, window[error.pos :])
        return JsonProblem(f"it is not valid JSON ({error.msg} at character {error.pos})", at_end)
    except ValueError as error:
        return JsonProblem(f"it is not valid JSON ({error})")
    return JsonValue(value, end) if whole or end < len(window) else None


def _may_continue(message: str, rest: str) -> bool:
    """Return whether the text may have ended within a word or an escape of JSON, or before the next one."""
    in_escape = message.startswith("Invalid \\") and len(rest) < len("\\u0000")
    return in_escape or any(word.startswith(rest) for word in _WORDS)


def decode_whole(text: str) -> JsonValue | JsonProblem:
    """Return the JSON value that is the whole text, apart from white space around it."""
    decoded = decode(text, skip_space(text, 0))
    if isinstance(decoded, JsonValue) and skip_space(text, decoded.end) < len(text):
        return JsonProblem(f"there is text after its JSON value (at character {decoded.end})")
    return decoded


def can_be_sent(text: str) -> bool:
    """Return whether the text has no half of a surrogate pair, which no encoding accepts."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def dump(value: object) -> str:
    """Return a value as JSON, with characters unescaped if they can be sent. Raise RecursionError if it is nested too
    deeply.
    """
    text = json.dumps(value, ensure_ascii=False)
    return text if can_be_sent(text) else json.dumps(value)
