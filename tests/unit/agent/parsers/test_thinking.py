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


ONLY_CALLS = [name for name in NAMES if name.startswith(("deepseek", "kimi", "llama", "mistral"))]
"""Families whose calls begin with a token that means nothing else."""


@pytest.mark.parametrize("name", ONLY_CALLS)
def test_token_that_can_only_begin_a_call_ends_thinking(name: str) -> None:
    parsed = parse(name, f"<think>I list it. {call(name, 'ls')}")
    assert (made(parsed), parsed.reasoning, parsed.content) == ([("ls", {})], "I list it.", None)
    assert (parsed.errors, parsed.problems) == ((), ())


@pytest.mark.parametrize("name", ONLY_CALLS)
def test_token_of_calls_does_not_end_thinking_that_is_closed_later(name: str) -> None:
    parsed = parse(name, f"<think>maybe {call(name, 'rm')} or not</think>{call(name, 'ls')}")
    assert (made(parsed), parsed.problems) == ([("ls", {})], ())


@pytest.mark.parametrize("name", sorted({*NAMES} - {*ONLY_CALLS}))
@pytest.mark.parametrize("before", ["", "<think>a</think>b"])
def test_call_in_thinking_that_is_never_closed_is_a_problem_that_the_model_sees(name: str, before: str) -> None:
    parsed = parse(name, f"{before}<think>maybe {call(name, 'rm')}")
    assert (parsed.tool_calls, parsed.content, parsed.cut) == ((), "b" if before else None, False)
    (problem,) = parsed.problems
    assert (problem.kind, problem.trainable) == ("unclosed_thinking", False)
    assert "</think>" in (problem.notice or "")


@pytest.mark.parametrize("name", NAMES)
def test_thinking_that_is_never_closed_without_a_call_is_no_problem(name: str) -> None:
    parsed = parse(name, 'a<think>b {"x": 1}\n{"name": "Ada"}')
    assert (parsed.content, parsed.tool_calls, parsed.problems) == ("a", (), ())


@pytest.mark.parametrize("name", NAMES)
def test_thinking_that_the_token_limit_cut_is_no_problem(name: str) -> None:
    text = f"<think>maybe {call(name, 'rm')} or"
    if name not in ONLY_CALLS:
        assert parse(name, text).completion(text, "length").problems == ()


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
