"""A model's arguments: JSON text, coercion, validation, and errors that say how to call."""

from __future__ import annotations

import difflib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_exec.tools.call.arguments import parse_arguments
from hermes_exec.tools.call.coercion import coerce_arguments
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.catalog.schemas import EXAMPLES, schemas

SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 1, "maximum": 10},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean", "default": False},
        "name": {"type": "string"},
        "mode": {"type": "string", "enum": ["fast", "slow"]},
        "items": {"type": "array", "items": {"type": "string"}},
        "numbers": {"type": "array", "items": {"type": "integer"}},
        "extra": {"type": "object"},
    },
    "required": ["name"],
}


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        (b'{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        (None, {}),
        ("", {}),
        ("null", {}),
        (' {"a": "line one\nline two"} ', {"a": "line one\nline two"}),
        ('"{\\"a\\": 1}"', {"a": 1}),
    ],
)
def test_what_is_whole_is_read(raw: str | bytes | dict[str, object] | None, value: dict[str, object]) -> None:
    assert parse_arguments(raw) == value


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ('{"command": "ls', "ends too early"),
        ('{"command": "ls"', "ends too early"),
        ('{"command": ', "ends too early"),
        ('{"command": "ls"} and more', "followed by text"),
        ('{"command": "ls"}{"command": "ls"}', "second JSON value"),
        ('{"command": "a", "command": "b"}', "twice"),
        ("{command: ls}", "not valid JSON"),
        ("ls -la", "not valid JSON"),
        ("[1, 2]", "not an array"),
        ("42", "not a number"),
        ('{"a": NaN}', "NaN"),
        ("[" * 200_000, "nested too deeply"),
    ],
)
def test_malformed_json_is_an_error_that_says_what_is_wrong(raw: str, told: str) -> None:
    with pytest.raises(ToolFailure) as failure:
        parse_arguments(raw)
    assert failure.value.kind == "malformed_json"
    assert told in failure.value.message


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        ({"count": "3"}, {"count": 3}),
        ({"count": 3.0}, {"count": 3}),
        ({"ratio": "0.5"}, {"ratio": 0.5}),
        ({"flag": "true"}, {"flag": True}),
        ({"flag": "False"}, {"flag": False}),
        ({"items": "one"}, {"items": ["one"]}),
        ({"items": '["one", "two"]'}, {"items": ["one", "two"]}),
        ({"items": "[not json"}, {"items": ["[not json"]}),
        ({"numbers": '["1", 2]'}, {"numbers": [1, 2]}),
        ({"numbers": "7"}, {"numbers": [7]}),
        ({"extra": '{"a": [1]}'}, {"extra": {"a": [1]}}),
        ({"count": None}, {}),
    ],
)
def test_what_is_plainly_meant_is_coerced(given_: dict[str, object], wanted: dict[str, object]) -> None:
    assert coerce_arguments(SCHEMA, {"name": "n", **given_}) == {"flag": False, "name": "n", **wanted}


@pytest.mark.parametrize(
    ("given_", "kind", "told"),
    [
        ({}, "missing_argument", "'name' is missing"),
        ({"name": None}, "missing_argument", "'name' is missing"),
        ({"nam": "n", "name": "n"}, "unknown_argument", "Did you mean 'name'"),
        ({"name": 5}, "wrong_type", "'name' must be a string, not 5"),
        ({"name": {"a": 1}}, "wrong_type", "must be a string"),
        ({"name": "n", "count": "many"}, "wrong_type", "'count' must be an integer"),
        ({"name": "n", "count": True}, "wrong_type", "'count' must be an integer"),
        ({"name": "n", "count": 1.5}, "wrong_type", "'count' must be an integer"),
        ({"name": "n", "count": "9" * 5000}, "wrong_type", "'count' must be an integer"),
        ({"name": "n", "count": 11}, "bad_value", "at most 10"),
        ({"name": "n", "count": 0}, "bad_value", "at least 1"),
        ({"name": "n", "ratio": float("nan")}, "wrong_type", "a number"),
        ({"name": "n", "flag": "maybe"}, "wrong_type", "true or false"),
        ({"name": "n", "mode": "fsat"}, "bad_value", "Did you mean 'fast'"),
        ({"name": "n", "items": [["nested"]]}, "wrong_type", "an array of strings"),
        ({"name": "n", "extra": "text"}, "wrong_type", "an object"),
        ({"name": "half \ud83d"}, "bad_value", "surrogate"),
    ],
)
def test_the_rest_is_refused_with_a_reason(given_: dict[str, object], kind: str, told: str) -> None:
    with pytest.raises(ToolFailure) as failure:
        coerce_arguments(SCHEMA, given_)
    assert failure.value.kind == kind
    assert told in failure.value.message


def test_a_byte_of_a_file_name_may_stand_in_a_path() -> None:
    schema = {"properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
    assert coerce_arguments(schema, {"path": "a\udcff"}) == {"path": "a\udcff"}
    for arguments in ({"path": "a\ud800"}, {"path": "a\udc00"}, {"content": "a\udcff"}):
        with pytest.raises(ToolFailure, match="surrogate"):
            coerce_arguments(schema, arguments)


def test_several_troubles_are_told_at_once() -> None:
    with pytest.raises(ToolFailure) as failure:
        coerce_arguments(SCHEMA, {"cuont": 3, "flag": "x"})
    assert "cuont" in failure.value.message
    assert "'name' is missing" in failure.value.message
    assert "'flag' must be" in failure.value.message


def test_clamped_numbers_are_moved_into_their_range() -> None:
    assert coerce_arguments(SCHEMA, {"name": "n", "count": 99}, clamped=["count"])["count"] == 10


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*SCHEMA["properties"], "other"]), json_values))
def test_fitting_gives_the_schemas_types_or_a_failure(arguments: dict[str, object]) -> None:
    try:
        fitted = coerce_arguments(SCHEMA, parse_arguments(json.dumps(arguments)))
    except ToolFailure:
        return
    types: dict[str, type | tuple[type, ...]] = {
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "string": str,
        "array": list,
        "object": dict,
    }
    properties = SCHEMA["properties"]
    assert isinstance(properties, dict)
    for name, value in fitted.items():
        assert isinstance(value, types[properties[name]["type"]])


@given(st.text())
def test_any_text_is_arguments_or_a_failure(text: str) -> None:
    kinds = []
    try:
        assert isinstance(parse_arguments(text), dict)
    except ToolFailure as failure:
        kinds.append(failure.kind)
    assert kinds in ([], ["malformed_json"])


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_each_example_call_fits_its_schema(name: str) -> None:
    function = schemas()[name]["function"]
    assert isinstance(function, dict)
    given = parse_arguments(EXAMPLES[name])
    assert coerce_arguments(function["parameters"], given).items() >= given.items()


def test_what_is_no_text_is_refused_as_the_same_text_is() -> None:
    wrong: Any
    for wrong, told in (([], "not an array"), (3, "not a number"), (True, "not a boolean")):
        for given_ in (wrong, json.dumps(wrong)):
            with pytest.raises(ToolFailure, match=told):
                parse_arguments(given_)


def test_a_number_of_very_many_digits_is_told_without_advice_for_programmers() -> None:
    with pytest.raises(ToolFailure, match="digits") as caught:
        parse_arguments('{"count": ' + "9" * 5000 + "}")
    assert "sys." not in str(caught.value)


def test_large_arguments_are_not_compared_and_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of a slot calls tools with arguments of mebibytes: what is made of them is bounded."""
    compared: list[int] = []
    close = difflib.get_close_matches

    def counted(word: str, *rest: Any, **more: Any) -> list[str]:
        compared.append(len(word))
        return close(word, *rest, **more)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    for arguments, told in (
        ({"mode": "s" * (4 << 20)}, "must be one of fast, slow"),
        ({f"{'k' * 200}{number}": 1 for number in range(30_000)}, "29992 more arguments are unknown."),
        ({"items": "[" + "[]," * 100_000 + "1]"}, "'items' is JSON text of more than 262144 characters."),
        ({"extra": "[" + "[]," * 100_000 + "1]"}, "'extra' is JSON text of more than 262144 characters."),
    ):
        with pytest.raises(ToolFailure) as raised:
            coerce_arguments(SCHEMA, {"name": "a", **arguments})
        assert told in raised.value.message
        assert len(raised.value.message) < 3000
    assert len(compared) == 9
    assert max(compared) == 80
