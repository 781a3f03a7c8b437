"""Helpers of renderers: the arguments of a call as values, and names that a format can carry."""

from __future__ import annotations

import re

from hermes_agent.messages import ToolCall
from hermes_agent.parsers.json_text import JsonValue, decode_whole, dump

PLAIN = re.compile(r"[^\s<>{}\[\]\"'`=|｜▁]+")
"""A name that no format with tags takes for something else."""


def _check_whole(call: ToolCall) -> None:
    if call.error is not None:
        raise ValueError(f"a broken call cannot be rendered: {call.error}")


def arguments_of(call: ToolCall) -> dict[str, object]:
    """Return the arguments of a call. Raise ValueError if the call is broken or they are not a JSON object."""
    _check_whole(call)
    decoded = decode_whole(call.arguments)
    if not isinstance(decoded, JsonValue) or not isinstance(decoded.value, dict):
        why = "" if isinstance(decoded, JsonValue) else f": {decoded.why}"
        raise ValueError(f"the arguments of {call.name!r} are not a JSON object{why}")
    return decoded.value


def json_of(value: object) -> str:
    """Return a value as JSON. Raise ValueError if it is nested too deeply."""
    try:
        return dump(value)
    except RecursionError:
        raise ValueError("the arguments are nested too deeply") from None


def object_with(call: ToolCall, key: str) -> str:
    """Return the JSON object with `name` and, under this key, the arguments."""
    _check_whole(call)
    if not call.name or call.name != call.name.strip():
        raise ValueError(f"the format cannot carry the name {call.name!r}: it is empty or has white space around it")
    return f'{{"name": {json_of(call.name)}, "{key}": {json_of(arguments_of(call))}}}'


def tool_of(call: ToolCall) -> str:
    """Return the name of the tool. Raise ValueError if the call is broken or a format cannot carry the name."""
    _check_whole(call)
    return plain_name(call.name)


def plain_name(name: str, role: str = "name") -> str:
    """Return the name itself. Raise ValueError if a format with tags cannot carry it."""
    if not PLAIN.fullmatch(name):
        raise ValueError(f"the format cannot carry the {role} {name!r}: it has white space or a character of the tags")
    return name


def escape_json(value: object) -> str:
    """Return a value as JSON in which no tag can be read."""
    return json_of(value).replace("<", "\\u003c")
