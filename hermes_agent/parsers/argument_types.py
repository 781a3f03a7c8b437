"""Types of arguments that a format writes bare: they come from the schemas of the tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hermes_agent.parsers.base import Tools
from hermes_agent.parsers.json_text import JsonValue, decode_whole

_DEEPEST = 8
_TYPE_NAMES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)
_TYPE_ALIASES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
}


class Toolset:
    """The tools of one request, by name."""

    def __init__(self, tools: Tools) -> None:
        self._properties: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = _mapping(_mapping(tool).get("function", tool))
            properties = _mapping(_mapping(function.get("parameters")).get("properties"))
            if isinstance(name := function.get("name"), str):
                self._properties[name] = properties

    def may_call(self, name: str) -> bool:
        """Return whether there is such a tool. If no tools are known, every name is accepted."""
        return not self._properties or name in self._properties

    def properties(self, name: str) -> Mapping[str, Any]:
        """Return the schemas of a tool's parameters, an empty mapping for an unknown tool."""
        return self._properties.get(name, {})

    def types(self, name: str, parameter: str) -> frozenset[str]:
        """Return the types that a parameter may have, by JSON Schema's names; an empty set if its schema names none."""
        return frozenset(_types(self.properties(name).get(parameter), 0))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _types(schema: object, depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return
    declared = schema.get("type")
    for name in declared if isinstance(declared, (list, tuple)) else (declared,):
        if isinstance(name, str):
            yield _TYPE_ALIASES.get(name.lower(), name.lower())
    if schema.get("nullable") is True:
        yield "null"
    if declared is None:
        yield from _value_types(schema)
    for word in ("anyOf", "oneOf", "allOf"):
        choices = schema.get(word)
        for choice in choices if isinstance(choices, (list, tuple)) else ():
            yield from _types(choice, depth + 1)


def _value_types(schema: Mapping[str, Any]) -> Iterator[str]:
    allowed = schema.get("enum")
    values = list(allowed) if isinstance(allowed, (list, tuple)) else []
    for value in [*values, schema["const"]] if "const" in schema else values:
        yield json_type(value)


def json_type(value: object) -> str:
    """Return JSON Schema's name for the type of a value."""
    return next((name for kind, name in _TYPE_NAMES if isinstance(value, kind)), "null")


def value_of(text: str, types: frozenset[str], *, untyped_is_text: bool) -> object:
    """Return the value that a bare text stands for.

    A string is kept as it is, every space of it. If a string is one type of several, the text may also be `null`, an
    object or a list in JSON, if those are allowed. A parameter of other types is decoded as JSON, and is the text
    itself if that fails.
    """
    if not types:
        return text if untyped_is_text else _decode_or(text, text)
    bare = text.strip()
    if "null" in types and bare in ("null", "None"):
        return None
    if "string" in types:
        value = _decode_or(bare, text) if types & {"object", "array"} and bare[:1] in ("{", "[") else text
        return value if json_type(value) in types else text
    if "boolean" in types and bare.lower() in ("true", "false"):
        return bare.lower() == "true"
    value = _decode_or(bare, text)
    if isinstance(value, str) and value is not text:
        return _decode_again(value, text, types)
    return value


def _decode_or(text: str, otherwise: object) -> object:
    decoded = decode_whole(text)
    return decoded.value if isinstance(decoded, JsonValue) else otherwise


def _decode_again(value: str, text: str, types: frozenset[str]) -> object:
    again = _decode_or(value, None)
    return again if again is not None and json_type(again) in types else text
