"""Parsing of a model's arguments: JSON text or a mapping becomes a dict, or an error that explains the mistake."""

from __future__ import annotations

import json
from collections.abc import Mapping

from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.json_reader import DuplicateKey, read_json


def parse_arguments(raw: str | bytes | Mapping[str, object] | None) -> dict[str, object]:
    """Return the arguments of one call as a dict.

    `raw` is a mapping, the model's JSON text, or None for no arguments. Text that was JSON-encoded twice is decoded
    twice; raw line breaks inside strings are accepted. Text that is cut off is never repaired by a guess.

    Raises:
        ToolFailure: `malformed_json` if the text is cut off, has text after the object, repeats a key, or is not an
            object.
    """
    if raw is None:
        return {}
    if isinstance(raw, Mapping):
        return {str(key): value for key, value in raw.items()}
    if not isinstance(raw, str | bytes):
        raise ToolFailure("malformed_json", f"The arguments must be one JSON object, not {_json_type(raw)}.")
    text = raw.decode("utf-8", errors="replace") if isinstance(raw, bytes) else raw
    if not text.strip():
        return {}
    value = _load(text)
    if isinstance(value, str):
        value = _load(value)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ToolFailure("malformed_json", f"The arguments must be one JSON object, not {_json_type(value)}.")
    return value


def _load(text: str) -> object:
    try:
        value, end = read_json(text, len(text) - len(text.lstrip()))
        if text[end:].strip():
            raise json.JSONDecodeError("Extra data", text, end + len(text[end:]) - len(text[end:].lstrip()))
    except json.JSONDecodeError as error:
        raise ToolFailure("malformed_json", _explain(text, error)) from None
    except DuplicateKey as error:
        message = (
            f"The arguments name the key {error.key!r} twice, so it is not clear which value is meant. "
            "Name each key once."
        )
        raise ToolFailure("malformed_json", message) from None
    except RecursionError:
        raise ToolFailure("malformed_json", "The arguments are nested too deeply to be read.") from None
    except ValueError as error:
        reason = str(error).partition(";")[0]  # the rest is advice for programmers
        raise ToolFailure("malformed_json", f"The arguments are not valid JSON: {reason}.") from None
    return value


def _explain(text: str, error: json.JSONDecodeError) -> str:
    near = text[max(0, error.pos - 20) : error.pos + 20]
    if error.msg == "Extra data":
        rest = text[error.pos :].strip()
        surplus = "a second JSON value" if rest[:1] in ("{", "[") else "text"
        return (
            f"The arguments are one JSON object followed by {surplus} (character {error.pos}: {rest[:40]!r}). "
            "Send one object and nothing after it; make a second call for a second action."
        )
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return (
            f"The arguments are JSON that ends too early (after {len(text)} characters): the call was probably "
            "cut off. "
            "Send it again whole; split very long content into several calls."
        )
    return f"The arguments are not valid JSON: {error.msg} at character {error.pos}, near {near!r}."


def _json_type(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "null"
