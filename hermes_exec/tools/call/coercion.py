"""Coercion of arguments to a tool's JSON schema: unambiguous values are converted, others are refused with a reason."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hermes_exec.tools.call.failure import ToolFailure

Schema = Mapping[str, Any]
_MAX_JSON_CHARS, _MAX_NAME_CHARS, _MAX_UNKNOWN_NAMES = 256 << 10, 80, 8
_INTEGER = re.compile(r"[+-]?\d{1,30}\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NO_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_NAMES_OF_FILES = {"path", "patch"}
"""Arguments in which half of a surrogate pair may stand for a byte of a file name, as results write it."""


def coerce_arguments(
    schema: Schema, arguments: Mapping[str, object], *, clamped: Collection[str] = ()
) -> dict[str, Any]:
    """Return `arguments` as the schema requires them: coerced, validated and with defaults.

    `"42"` becomes 42, `"true"` becomes True, and JSON text of an array or object is parsed. A single value becomes a
    list of one where an array is expected. Null for an optional field means that the field is absent. Numbers of the
    fields in `clamped` are moved into their range.

    Raises:
        ToolFailure: `unknown_argument`, `missing_argument`, `wrong_type` or `bad_value`. The message lists all
            problems; the kind is the kind of the first one.
    """
    properties: Mapping[str, Schema] = schema.get("properties", {})
    required: Sequence[str] = schema.get("required", ())
    troubles = _unknown_arguments(properties, arguments) + _missing_arguments(properties, required, arguments)
    fitted: dict[str, Any] = {}
    for name, field in properties.items():
        value = arguments.get(name)
        if value is None and name not in required:
            if "default" in field:
                fitted[name] = field["default"]
            continue
        if value is None:
            if "default" in field:
                fitted[name] = field["default"]
            continue
        try:
            fitted[name] = _value(field, value, name, clamp=name in clamped)
        except ToolFailure as trouble:
            troubles.append((trouble.kind, trouble.message))
    if troubles:
        raise ToolFailure(troubles[0][0], " ".join(dict.fromkeys(message for _, message in troubles)))
    return fitted


def _unknown_arguments(properties: Mapping[str, Schema], arguments: Mapping[str, object]) -> list[tuple[str, str]]:
    unknown = [name for name in arguments if name not in properties]
    troubles, argument_names = [], ", ".join(properties) or "none"
    for name in unknown[:_MAX_UNKNOWN_NAMES]:
        short_name = name[:_MAX_NAME_CHARS]
        near = difflib.get_close_matches(short_name, properties, n=1, cutoff=0.4)
        meant = f" Did you mean '{near[0]}'?" if near else ""
        troubles.append(
            ("unknown_argument", f"Unknown argument '{short_name}'.{meant} Known arguments: {argument_names}.")
        )
    if len(unknown) > _MAX_UNKNOWN_NAMES:
        troubles.append(("unknown_argument", f"{len(unknown) - _MAX_UNKNOWN_NAMES} more arguments are unknown."))
    return troubles


def _missing_arguments(
    properties: Mapping[str, Schema], required: Sequence[str], arguments: Mapping[str, object]
) -> list[tuple[str, str]]:
    return [
        ("missing_argument", f"The required argument '{name}' is missing.")
        for name in required
        if arguments.get(name) is None and "default" not in properties.get(name, {})
    ]


def _value(schema: Schema, value: object, name: str, *, clamp: bool = False) -> object:
    kind = schema.get("type")
    if kind == "integer" or kind == "number":
        return _number(schema, value, name, clamp=clamp)
    if kind == "boolean":
        return _boolean(value, name)
    if kind == "array":
        return _array(schema, value, name)
    if kind == "object":
        return _object(schema, value, name)
    if kind == "string":
        return _string(schema, value, name)
    return value


def _number(schema: Schema, value: object, name: str, *, clamp: bool) -> int | float:
    integral = schema["type"] == "integer"
    number: int | float | None = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str):
        number = _number_from_text(value.strip(), integral)
    if isinstance(number, float) and integral:
        number = int(number) if number.is_integer() else None
    if number is None or number != number:
        raise _wrong_type(name, "an integer such as 42" if integral else "a number such as 1.5", value)
    low, high = schema.get("minimum"), schema.get("maximum")
    if clamp:
        number = number if low is None else max(low, number)
        return number if high is None else min(high, number)
    if low is not None and number < low:
        raise ToolFailure("bad_value", f"'{name}' must be at least {low}, not {number}.")
    if high is not None and number > high:
        raise ToolFailure("bad_value", f"'{name}' must be at most {high}, not {number}.")
    return number


def _number_from_text(text: str, integral: bool) -> int | float | None:
    if _INTEGER.match(text):
        return int(text)
    try:
        number = float(text)
    except ValueError:
        return None
    if integral and not number.is_integer():
        return None
    return number if abs(number) < 1e300 else None


def _boolean(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise _wrong_type(name, "true or false", value)


def _string(schema: Schema, value: object, name: str) -> str:
    if not isinstance(value, str):
        raise _wrong_type(name, "a string", value)
    if (_NO_BYTE if name in _NAMES_OF_FILES else _SURROGATE).search(value):
        raise ToolFailure(
            "bad_value",
            f"'{name}' contains half of a surrogate pair (a \\ud800-\\udfff escape without its other half).",
        )
    choices = schema.get("enum")
    if choices and value not in choices:
        close = difflib.get_close_matches(value[:_MAX_NAME_CHARS], choices, n=1)
        meant = f" Did you mean '{close[0]}'?" if close else ""
        raise ToolFailure("bad_value", f"'{name}' must be one of {', '.join(choices)}, not {value[:80]!r}.{meant}")
    return value


def _array(schema: Schema, value: object, name: str) -> list[object]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _parse_json(value, name)
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if any(isinstance(item, (dict, list)) for item in items) and schema.get("items", {}).get("type") not in (
        "object",
        "array",
        None,
    ):
        raise _wrong_type(name, f"an array of {schema['items']['type']}s", value)
    return [_value(schema.get("items", {}), item, f"{name}[{index}]") for index, item in enumerate(items)]


def _object(schema: Schema, value: object, name: str) -> dict[str, object]:
    if isinstance(value, str):
        value = _parse_json(value, name)
    if not isinstance(value, dict):
        raise _wrong_type(name, "an object", value)
    return coerce_arguments(schema, value) if schema.get("properties") else dict(value)


def _parse_json(text: str, name: str) -> object:
    if len(text) > _MAX_JSON_CHARS:
        raise ToolFailure("bad_value", f"'{name}' is JSON text of more than {_MAX_JSON_CHARS} characters.")
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text


def _wrong_type(name: str, wanted: str, value: object) -> ToolFailure:
    value_text = "a value that cannot be shown"
    try:
        value_text = json.dumps(value, ensure_ascii=False)[:80]
    except (TypeError, ValueError, RecursionError):
        value_text = type(value).__name__
    return ToolFailure("wrong_type", f"'{name}' must be {wanted}, not {value_text}.")
