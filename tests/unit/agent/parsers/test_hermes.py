"""The hermes parser: golden files, the edge cases one by one, and properties over any text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_agent.parsers import get_parser
from hermes_exec.errors import ConfigError

GOLDEN = Path(__file__).parent / "golden" / "hermes"
parse = get_parser("hermes")


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize("text", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_golden(text: Path) -> None:
    parsed = parse(text.read_text("utf-8").removesuffix("\n"))
    expected = json.loads(text.with_suffix(".json").read_text("utf-8"))
    assert {
        "content": parsed.content,
        "reasoning": parsed.reasoning,
        "cut": parsed.cut,
        "calls": [{"name": c.name, "arguments": c.arguments, "error": c.error} for c in parsed.calls],
    } == expected


def test_bad_block_does_not_discard_the_others() -> None:
    parsed = parse(call("a", x=1) + '<tool_call>{"name": oops}</tool_call>' + call("b", y=2))
    assert [(c.name, c.error is None) for c in parsed.calls] == [("a", True), ("", False), ("b", True)]
    assert parsed.calls[1].arguments == '{"name": oops}'
    assert not parsed.cut


def test_closing_tag_inside_a_string_does_not_end_the_call() -> None:
    parsed = parse(call("write_file", path="a.md", content="see </tool_call> and <tool_call> and <think>") + "after")
    assert [c.name for c in parsed.calls] == ["write_file"]
    assert json.loads(parsed.calls[0].arguments)["content"] == "see </tool_call> and <tool_call> and <think>"
    assert (parsed.content, parsed.reasoning) == ("after", None)


def test_closing_tag_inside_a_string_of_a_bad_block_does_not_end_it() -> None:
    parsed = parse('<tool_call>{"name": "a", "arguments": {"c": "x</tool_call>y"},,}</tool_call>' + call("b"))
    assert [(c.name, c.error is None) for c in parsed.calls] == [("", False), ("b", True)]
    assert "x</tool_call>y" in parsed.calls[0].arguments


@pytest.mark.parametrize("length", range(12, len(call("terminal", command="ls")) - len("}\n</tool_call>")))
def test_call_cut_by_max_tokens_is_reported(length: int) -> None:
    parsed = parse("I look. " + call("terminal", command="ls")[:length])
    assert parsed.cut
    assert [c.error is None for c in parsed.calls] == [False]
    assert "cut off" in (parsed.calls[0].error or "")
    assert parsed.content == "I look."


@pytest.mark.parametrize("length", range(6, 11))
def test_opening_tag_cut_is_reported(length: int) -> None:
    parsed = parse("I look. " + "<tool_call>"[:length])
    assert parsed.cut
    assert len(parsed.calls) == 1
    assert parsed.content == "I look."


def test_call_without_closing_tag_at_the_end_is_whole() -> None:
    parsed = parse(call("terminal", command="ls").removesuffix("\n</tool_call>"))
    assert [(c.name, c.error) for c in parsed.calls] == [("terminal", None)]
    assert not parsed.cut


def test_text_after_the_calls_is_kept() -> None:
    parsed = parse("before " + call("a") + " between " + call("b") + " after")
    assert parsed.content == "before  between  after"


def test_call_inside_think_is_not_executed() -> None:
    parsed = parse(f"<think>maybe {call('rm', path='/')}</think>No. {call('ls')}")
    assert [c.name for c in parsed.calls] == ["ls"]
    assert "maybe" in (parsed.reasoning or "")
    assert parsed.content == "No."


def test_unclosed_think_hides_everything_after_it() -> None:
    parsed = parse(f"<think>maybe {call('rm')}")
    assert parsed.calls == []
    assert parsed.content is None


def test_think_opened_by_the_template() -> None:
    parsed = parse(f"I could {call('rm')} but no</think>\n{call('ls')}")
    assert [c.name for c in parsed.calls] == ["ls"]
    assert (parsed.reasoning or "").startswith("I could")


def test_arguments_as_json_text_are_not_encoded_twice() -> None:
    parsed = parse('<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>')
    assert parsed.calls[0].arguments == '{"x": 1}'


def test_values_keep_their_type_and_space() -> None:
    content = '    indented\n\t"123" True {"a": 1}\n'
    parsed = parse(call("write_file", path="123", content=content))
    assert json.loads(parsed.calls[0].arguments) == {"path": "123", "content": content}


def test_raw_line_break_in_a_string() -> None:
    parsed = parse('<tool_call>{"name": "a", "arguments": {"c": "x\ny"}}</tool_call>')
    assert json.loads(parsed.calls[0].arguments) == {"c": "x\ny"}


@pytest.mark.parametrize(
    "block", ["[]", "1", '"x"', "{}", '{"name": ""}', '{"name": 3}', '{"arguments": {}}', "[" * 9999]
)
def test_what_is_no_call_is_an_error(block: str) -> None:
    parsed = parse(f"<tool_call>{block}</tool_call>{call('b')}")
    assert parsed.calls[0].error
    assert parsed.calls[1].name == "b"


def test_ids_are_the_same_for_the_same_text_and_differ_within_it() -> None:
    text = call("a") + call("a")
    ids = [c.id for c in parse(text).calls]
    assert ids == [c.id for c in parse(text).calls]
    assert len(set(ids)) == 2


def test_unknown_parser_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="hermes"):
        get_parser("hermess")


_pieces = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        '{"name": "f", "arguments": {}}',
        '{"name',
        '"',
        "\\",
        "x",
        "\n",
        "<tool_",
        "é",
    ]
)


@given(st.one_of(st.text(), st.lists(_pieces, max_size=12).map("".join)))
def test_never_raises_and_calls_have_name_or_error(text: str) -> None:
    parsed = parse(text)
    assert all((c.error is None) == bool(c.name) for c in parsed.calls)
    assert parsed.content is None or parsed.content.strip() == parsed.content != ""


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.lists(st.dictionaries(st.text(), _values, max_size=3), max_size=4), st.text(alphabet="abc \n."))
def test_every_well_formed_call_comes_back(arguments: list[dict[str, object]], between: str) -> None:
    parsed = parse(
        between.join(
            call("f") if not a else f"<tool_call>{json.dumps({'name': 'f', 'arguments': a})}</tool_call>"
            for a in arguments
        )
    )
    assert [json.loads(c.arguments) for c in parsed.calls] == arguments
    assert all(c.error is None for c in parsed.calls)
