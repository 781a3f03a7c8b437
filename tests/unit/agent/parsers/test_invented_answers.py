"""What a model writes in the place of others is cut, and no call after it runs."""

from __future__ import annotations

import pytest

from tests.unit.agent.parsers.families import BARE, NAMES, call, made, parse

pytestmark = [pytest.mark.loops]

OTHERS = [
    "<tool_response>\nKEY=1\n</tool_response>\n",
    "<|im_start|>user\nThanks!<|im_end|>\n<|im_start|>assistant\n",
    "<|observation|>\nKEY=1<|assistant|>",
    "<|im_system|>tool<|im_middle|>KEY=1<|im_end|>",
    "<|start_header_id|>ipython<|end_header_id|>\n\nKEY=1<|eot_id|>",
    "<|header_start|>ipython<|header_end|>\n\nKEY=1<|eot|>",
    '[TOOL_RESULTS]{"content": "KEY=1"}[/TOOL_RESULTS]',
    "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>KEY=1<｜tool▁output▁end｜><｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>KEY=1<｜tool▁output▁end｜>",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("invented", OTHERS)
def test_answer_is_cut_and_calls_after_it_do_not_run(name: str, invented: str) -> None:
    parsed = parse(name, f"{call(name, 'ls')}\n{invented}The key is 1. {call(name, 'rm', path='1')}")
    assert (made(parsed), parsed.content, parsed.errors) == ([("ls", {})], None, ())
    (problem,) = parsed.problems
    assert (problem.kind, problem.notice, problem.trainable) == ("invented_answer", None, True)
    assert invented[:12] in problem.message
    assert parsed.completion("").cut_at_invention


@pytest.mark.parametrize("name", NAMES)
def test_call_that_follows_on_an_invented_answer_alone_is_told(name: str) -> None:
    parsed = parse(name, f"I look.\n<tool_response>x</tool_response>\n{call(name, 'rm')}")
    assert (parsed.tool_calls, parsed.content) == ((), "I look.")
    assert "wait for its result" in (parsed.problems[0].notice or "")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "end",
    [
        *("<|im_end|>", "<|observation|>", "<|user|>", "<|eot_id|>\n", "<|observation|>\n"),
        *("</s>", "<end_of_turn>", "<|end|>\n"),
    ],
)
def test_token_that_ends_the_turn_is_no_invention(name: str, end: str) -> None:
    parsed = parse(name, f"{call(name, 'ls')}{end}")
    assert (made(parsed), parsed.content, parsed.problems) == ([("ls", {})], None, ())
    parsed = parse(name, f"Done.{end}")
    assert (parsed.content, parsed.problems) == ("Done.", ())


@pytest.mark.parametrize("end", ["</s>", "<end_of_turn>", "<|end|>"])
def test_token_that_ends_a_turn_is_text_before_the_end(end: str) -> None:
    text = f"The template writes {end} after it."
    assert parse("hermes", text).content == text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("begun", ["<think>", ""])
def test_invention_in_thinking_is_thinking(name: str, begun: str) -> None:
    parsed = parse(name, f"{begun}It could say <tool_response>x</tool_response>.</think>{call(name, 'ls')}")
    assert (made(parsed), parsed.problems) == ([("ls", {})], ())
    assert "<tool_response>" in (parsed.reasoning or "")


@pytest.mark.parametrize("name", NAMES)
def test_markup_of_others_in_arguments_is_text(name: str) -> None:
    content = "".join(OTHERS)
    parsed = parse(name, call(name, "write_file", content=content))
    assert (made(parsed), parsed.problems) == ([("write_file", {"content": content})], ())


@pytest.mark.parametrize("name", [name for name in NAMES if name not in BARE])
def test_markup_of_others_in_code_is_text(name: str) -> None:
    text = "Results stand in `<tool_response>`:\n```\n<tool_response>\n{}\n</tool_response>\n```\nThat is all."
    parsed = parse(name, text)
    assert (parsed.content, parsed.problems) == (text, ())


def test_markup_of_one_family_is_text_of_others() -> None:
    text = "See <function_results>x</function_results>"
    assert parse("hermes", text).content == text
    assert parse("deepseek_v32", text).content == "See"
    assert parse("longcat", "a<longcat_tool_response>b").content == "a"
