"""Thinking is told apart from the rest the same way in every family, and never reaches into a call."""

from __future__ import annotations

import pytest

from tests.unit.agent.parsers.families import BARE, NAMES, TAGS, call, made, parse

pytestmark = [pytest.mark.loops]

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


QUOTING = [
    "I strip `<think>` blocks with a regex.",
    "The tag `</think>` closes, `<think>` opens.",
    "So `re.sub('<think>.*</think>', '', text)` it is.",
    "The fix:\n```python\ntext.split('</think>')[-1]\n```\nThe answer is 42.",
    "It writes\n~~~\n<think>\nx\n</think>\ny\n~~~\nfor it.\n```\nls\n```",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", QUOTING)
@pytest.mark.parametrize("thought", ["", "<think>a</think>", "a</think>"])
def test_tags_of_thinking_in_code_are_text(name: str, text: str, thought: str) -> None:
    parsed = parse(name, thought + text)
    assert (parsed.content, parsed.reasoning, parsed.problems) == (text, "a" if thought else None, ())


@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize("text", ["I look at `</think>`:", "The template opens `<think>` itself, so I run it:"])
def test_call_beside_a_tag_of_thinking_in_code_runs(name: str, text: str) -> None:
    for written in (f"{text}\n{call(name, 'ls')}", f"{call(name, 'ls')}\n{text}"):
        parsed = parse(name, written)
        assert (made(parsed), parsed.content, parsed.reasoning) == ([("ls", {})], text, None)
        assert parsed.problems == ()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", QUOTING)
@pytest.mark.parametrize("begun", ["<think>", ""])
def test_thinking_goes_on_after_a_tag_that_it_quotes(name: str, text: str, begun: str) -> None:
    parsed = parse(name, f"{begun}{text}\n</think>\nI look at `</think>`.")
    assert (parsed.content, parsed.reasoning) == ("I look at `</think>`.", text)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["It is a ` that", "I open it:\n```python\nx = 1\n", "```ls``` or `"])
@pytest.mark.parametrize("begun", ["<think>", ""])
def test_code_that_thinking_leaves_open_does_not_hide_its_end(name: str, text: str, begun: str) -> None:
    if name == "json" and "python" in text and not begun:
        return  # A fence is a form of calls there, and is read to its end.
    for answer in ("So `it` is.", "So:\n```\nx = 2\n```"):
        parsed = parse(name, f"{begun}{text}</think>{answer}")
        assert (parsed.content, parsed.reasoning) == (answer, text.strip())
    if name not in BARE:
        assert made(parse(name, f"{begun}{text}</think>{call(name, 'ls')}")) == [("ls", {})]


@pytest.mark.parametrize("name", sorted({*NAMES} - {*BARE}))
def test_tag_of_a_call_in_prose_before_a_quoted_tag_of_thinking_is_no_thinking(name: str) -> None:
    parsed = parse(name, f"The tag {TAGS[name].opening} begins one, and `</think>` closes thinking.")
    assert (parsed.calls, parsed.reasoning, len(parsed.errors)) == ((), None, 1)
