"""Thinking is told apart from the rest the same way in every family, and never reaches into a call."""

from __future__ import annotations

import pytest

from tests.unit.agent.parsers.families import BARE, NAMES, TAGS, call, made, parse

pytestmark = [pytest.mark.sample]

BETWEEN = [name for name in NAMES if name not in ("llama3_json", "llama4_json")]


@pytest.mark.parametrize("name", NAMES)
def test_call_inside_of_thinking_is_not_executed(name: str) -> None:
    parsed = parse(name, f"<think>maybe {call(name, 'rm', path='/')}</think>\n{call(name, 'ls')}")
    assert made(parsed) == [("ls", {})]
    assert (parsed.reasoning or "").startswith("maybe")
    assert (parsed.content, parsed.errors) == (None, ())


@pytest.mark.parametrize("name", NAMES)
def test_thinking_that_is_never_closed_hides_all_after_it(name: str) -> None:
    parsed = parse(name, f"<think>maybe {call(name, 'rm')}")
    assert (parsed.tool_calls, parsed.content, parsed.cut) == ((), None, False)
    assert (parsed.reasoning or "").startswith("maybe")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("begun", ["I could {} but no", "{}", "\n{} no"])
def test_thinking_that_the_template_opened(name: str, begun: str) -> None:
    parsed = parse(name, f"{begun.format(call(name, 'rm', path='/'))}</think>\n{call(name, 'ls')}")
    assert made(parsed) == [("ls", {})]
    assert "rm" in (parsed.reasoning or "")
    assert (parsed.content, parsed.errors) == (None, ())


@pytest.mark.parametrize("name", sorted({*NAMES} - {*BARE}))
def test_broken_call_in_thinking_that_the_template_opened(name: str) -> None:
    parsed = parse(name, f"I could {TAGS[name].opening} but no</think>\n{call(name, 'ls')}")
    assert made(parsed) == [("ls", {})]
    assert (parsed.content, parsed.errors, parsed.cut) == (None, (), False)


@pytest.mark.parametrize("name", BETWEEN)
def test_thinking_between_calls(name: str) -> None:
    text = f"<think>one</think>{call(name, 'a')}<think>two {call(name, 'rm')}</think>so{call(name, 'b')}<think>three"
    parsed = parse(name, text)
    assert [made.name for made in parsed.calls] == ["a", "b"]
    assert [line for line in (parsed.reasoning or "").split("\n") if line in ("one", "three")] == ["one", "three"]
    assert parsed.content == "so"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "value",
    ["<think>", "</think>", "a <think>b</think> c", "</think><think>", "\n<think>\nx\n</think>\n", "[THINK]x[/THINK]"],
)
@pytest.mark.parametrize("before", ["", "<think>first</think>\n", "first</think>\n"])
def test_tags_of_thinking_in_an_argument_survive(name: str, value: str, before: str) -> None:
    parsed = parse(name, before + call(name, "write_file", path="a", content=value) + call(name, "ls"))
    calls = [("write_file", {"path": "a", "content": value}), ("ls", {})]
    assert made(parsed) == calls
    assert (parsed.content, parsed.reasoning) == (None, "first" if before else None)


@pytest.mark.parametrize("name", NAMES)
def test_thinking_without_calls(name: str) -> None:
    for text in ("<think>a</think>b", "a</think>b", "\n<think>\na\n</think>\n\nb\n"):
        parsed = parse(name, text)
        assert (parsed.reasoning, parsed.content, parsed.tool_calls) == ("a", "b", ())
    assert parse(name, "<think></think>b").reasoning is None


def test_second_closing_tag_is_dropped() -> None:
    parsed = parse("hermes", "a</think>b</think>c")
    assert (parsed.reasoning, parsed.content) == ("a", "bc")


def test_mistral_thinks_between_brackets_too() -> None:
    parsed = parse("mistral", "[THINK]maybe [TOOL_CALLS]rm[ARGS]{}[/THINK]So[TOOL_CALLS]ls[ARGS]{}")
    assert (parsed.reasoning, parsed.content, made(parsed)) == ("maybe [TOOL_CALLS]rm[ARGS]{}", "So", [("ls", {})])
    other = parse("hermes", "[THINK]maybe[/THINK]")
    assert (other.reasoning, other.content) == (None, "[THINK]maybe[/THINK]")
