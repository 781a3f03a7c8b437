"""The hermes parser: golden files, and what is its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.agent.parsers.families import call, parse

pytestmark = [pytest.mark.loops]

GOLDEN = Path(__file__).parent / "golden" / "hermes"


@pytest.mark.parametrize("text", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_golden(text: Path) -> None:
    parsed = parse("hermes", text.read_text("utf-8").removesuffix("\n"))
    expected = json.loads(text.with_suffix(".json").read_text("utf-8"))
    assert {
        "content": parsed.content,
        "reasoning": parsed.reasoning,
        "cut": parsed.cut,
        "calls": [{"name": c.name, "arguments": c.arguments, "error": c.error} for c in parsed.tool_calls],
    } == expected


def test_call_without_closing_tag_at_the_end_is_whole() -> None:
    parsed = parse("hermes", call("hermes", "terminal", command="ls").removesuffix("\n</tool_call>"))
    assert [(c.name, c.error) for c in parsed.calls] == [("terminal", None)]
    assert not parsed.cut


def test_unclosed_last_string_is_no_cut_when_the_tag_is_closed() -> None:
    parsed = parse("hermes", '<tool_call>{"name": "a", "arguments": {"path": "x}}</tool_call>')
    assert (parsed.calls, len(parsed.errors), parsed.cut) == ((), 1, False)


def test_text_where_the_closing_tag_must_be_is_no_cut() -> None:
    parsed = parse("hermes", '<tool_call>{"name": "a", "arguments": {}} Now I wait.')
    assert (parsed.calls, parsed.content, parsed.cut) == ((), None, False)
    assert "text after its JSON object" in parsed.errors[0].error


def test_raw_line_break_in_a_string() -> None:
    parsed = parse("hermes", '<tool_call>{"name": "a", "arguments": {"c": "x\ny"}}</tool_call>')
    assert json.loads(parsed.calls[0].arguments) == {"c": "x\ny"}


@pytest.mark.parametrize(
    "block", ["[]", "1", '"x"', "{}", '{"name": ""}', '{"name": 3}', '{"arguments": {}}', "[" * 9999]
)
def test_what_is_no_call_is_an_error(block: str) -> None:
    parsed = parse("hermes", f"<tool_call>{block}</tool_call>{call('hermes', 'b')}")
    assert parsed.errors[0].error
    assert parsed.calls[0].name == "b"
