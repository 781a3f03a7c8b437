"""What an endpoint answers that is cut, made up or swallowed: nothing of it runs, and the record says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hermes_agent import AgentLoop, Episode, OpenAIModel, ScriptedModel
from hermes_agent.parsers import FORMATS
from tests.unit.agent.endpoint import endpoint, ok
from tests.unit.agent.parsers.families import BARE, NAMES, call
from tests.unit.agent.toolboxes import FunctionTools

pytestmark = [pytest.mark.anyio, pytest.mark.loops]


class Log(FunctionTools):
    """A toolbox that keeps what was run."""

    def __init__(self) -> None:
        super().__init__(self._run)
        self.ran: list[dict[str, Any]] = []

    async def _run(self, arguments: dict[str, Any]) -> str:
        self.ran.append(arguments)
        return "ok"


def asked(arguments: object, name: str = "do") -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


async def run(*answers: tuple[dict[str, Any], str], parser: str | None = None) -> tuple[Episode, Log]:
    """An episode in which the endpoint gives these messages and finish reasons, then says done."""
    tools = Log()
    replies = [ok(message, finish) for message, finish in answers]
    with endpoint(*replies, ok({"content": "done"})) as server:
        model = OpenAIModel("m", base_url=server.base_url, parser=parser)
        episode = await AgentLoop(model, tools).run("go")
        await model.aclose()
    return episode, tools


def kinds(episode: Episode) -> list[str]:
    return [error.kind for error in episode.errors if error.where == "model"]


@pytest.mark.parametrize("arguments", ["", "{}", " { } ", None, {}, '"{}"', '{"x": ', '{"x": "a', "null"])
async def test_last_structured_call_that_length_cut_does_not_run(arguments: object) -> None:
    episode, tools = await run(({"content": None, "tool_calls": [asked('{"x": 1}'), asked(arguments)]}, "length"))
    assert (episode.finish, episode.trainable, tools.ran) == ("answered", True, [{"x": 1}])
    whole, cut = episode.tool_calls
    assert (whole.ok, cut.state, cut.error_kind) == (True, "not_begun", "malformed_call")
    assert "cut off" in json.loads(cut.content)["error"]


WHOLE = [("length", '{"x": 2}'), ("stop", "{}")]


@pytest.mark.parametrize(("finish", "arguments"), WHOLE)
async def test_structured_call_that_is_whole_runs(finish: str, arguments: str) -> None:
    episode, tools = await run(({"content": None, "tool_calls": [asked("{}"), asked(arguments)]}, finish))
    assert tools.ran == [{}, {"x": 2} if finish == "length" else {}]
    assert episode.errors == ()


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("mistral", "[TOOL_CALLS]do[ARGS]{}"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.do:0<|tool_call_argument_begin|>{}"),
        ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>do<｜tool▁sep｜>{}"),
    ],
)
async def test_call_in_text_that_length_may_have_cut_does_not_run(parser: str, text: str) -> None:
    episode, tools = await run(({"content": text}, "length"), parser=parser)
    assert (tools.ran, episode.finish) == ([], "answered")
    assert "cut off" in json.loads(episode.tool_calls[0].content)["error"]
    _, tools = await run(({"content": text}, "stop"), parser=parser)
    assert tools.ran == [{}]


@pytest.mark.parametrize("parser", [name for name in NAMES if name != "mistral"])
async def test_call_in_text_with_its_end_is_whole(parser: str) -> None:
    _, tools = await run(({"content": call(parser, "do")}, "length"), parser=parser)
    assert tools.ran == [{}]


@pytest.mark.parametrize("parser", [None, *NAMES])
async def test_call_in_reasoning_alone_is_told_to_the_model(parser: str | None) -> None:
    reasoning = f"I list it.\n{call(parser or 'hermes', 'do')}"
    episode, tools = await run(({"content": "", "reasoning_content": reasoning}, "stop"), parser=parser)
    assert (episode.finish, episode.answer, episode.trainable, tools.ran) == ("answered", "done", False, [])
    assert kinds(episode) == ["call_in_reasoning"]
    assert [message["role"] for message in episode.messages] == ["user", "assistant", "user", "assistant"]
    assert "not run" in episode.messages[2]["content"]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in BARE])
async def test_call_of_any_format_in_reasoning_alone_is_told_without_a_parser(name: str) -> None:
    message = {"content": None, "reasoning_content": f"I list it.\n{call(name, 'do')}"}
    episode, _ = await run((message, "stop"))
    assert (kinds(episode), episode.trainable) == (["call_in_reasoning"], False)


@pytest.mark.parametrize(
    ("message", "finish", "end"),
    [
        ({"content": "", "reasoning_content": "hm"}, "stop", "empty"),
        ({"content": "so", "reasoning_content": call("hermes", "do")}, "stop", "answered"),
        ({"content": "", "reasoning_content": call("hermes", "do")}, "length", "max_tokens"),
    ],
)
async def test_reasoning_that_is_no_problem(message: dict[str, Any], finish: str, end: str) -> None:
    episode, _ = await run((message, finish), parser="hermes")
    assert (episode.finish, episode.errors) == (end, ())


@pytest.mark.parametrize("parser", ["hermes", "glm45", "glm47", "qwen3_coder", "longcat", "json"])
async def test_call_in_thinking_that_is_never_closed_is_told_to_the_model(parser: str) -> None:
    text = f"<think>I list it.\n{call(parser, 'do')}"
    episode, tools = await run(({"content": text}, "stop"), parser=parser)
    assert (episode.finish, episode.answer, episode.trainable, tools.ran) == ("answered", "done", False, [])
    assert kinds(episode) == ["unclosed_thinking"]
    assert "</think>" in episode.messages[2]["content"]


@pytest.mark.parametrize("parser", NAMES)
async def test_call_after_an_invented_answer_does_not_run(parser: str) -> None:
    first, second = call(parser, "do", x="one"), call(parser, "do", x="two")
    text = f"{first}\n<tool_response>KEY=1</tool_response>\nThe key is 1.\n{second}"
    episode, tools = await run(({"content": text}, "stop"), parser=parser)
    assert (tools.ran, episode.trainable, kinds(episode)) == ([{"x": "one"}], True, ["invented_answer"])
    assert "KEY" not in json.dumps(episode.messages)
    assert "KEY" in episode.errors[0].message


@pytest.mark.parametrize("parser", [None, "hermes"])
async def test_structured_call_after_an_invented_answer_does_not_run(parser: str | None) -> None:
    message = {"content": "I look.\n<tool_response>KEY=1</tool_response>", "tool_calls": [asked('{"x": 1}')]}
    episode, tools = await run((message, "tool_calls"), parser=parser)
    assert (tools.ran, kinds(episode)) == ([], ["invented_answer"])
    assert episode.messages[1]["content"] == "I look."
    assert "wrote a result yourself" in json.loads(episode.tool_calls[0].content)["error"]


@pytest.mark.parametrize("begun", ["<think>", ""])
async def test_thinking_that_an_endpoint_leaves_in_the_text_may_name_what_others_write(begun: str) -> None:
    """Servers with a parser of calls and none of thinking hand it through."""
    text = f"{begun}\nThe <tool_response> says KEY=1.\n</think>\nI go on."
    episode, tools = await run(({"content": text, "tool_calls": [asked('{"x": 1}')]}, "tool_calls"))
    assert (tools.ran, kinds(episode), episode.messages[1]["content"]) == ([{"x": 1}], [], text)
    invented = f"{text}\n<tool_response>x</tool_response>"
    episode, tools = await run(({"content": invented, "tool_calls": [asked('{"x": 1}')]}, "tool_calls"))
    assert (tools.ran, kinds(episode), episode.messages[1]["content"]) == ([], ["invented_answer"], "I go on.")
    assert episode.reasoning[0] == "The <tool_response> says KEY=1."


@pytest.mark.parametrize("parser", NAMES)
@pytest.mark.parametrize("quote", ["`</think>`", "</think>", "`<think>`"])
async def test_tag_after_thinking_that_the_endpoint_told_apart_takes_no_call_away(parser: str, quote: str) -> None:
    message = {"reasoning_content": "I think.", "content": f"{call(parser, 'do')}\nThen I check {quote} in it."}
    episode, tools = await run((message, "stop"), parser=parser)
    assert (tools.ran, episode.errors, episode.reasoning[0]) == ([{}], (), "I think.")
    assert "Then I check" in episode.messages[1]["content"]


async def test_answer_of_an_endpoint_that_reads_calls_itself_is_cut_too() -> None:
    episode, _ = await run(({"content": "Done.<|im_end|>\n<|im_start|>user\nThanks"}, "stop"))
    assert (episode.finish, episode.answer, kinds(episode)) == ("answered", "Done.", ["invented_answer"])
    text = "  Done.\n```\n<tool_response>x</tool_response>\n```\n"
    episode, _ = await run(({"content": text}, "stop"))
    assert (episode.answer, episode.errors) == (text, ())


@pytest.mark.parametrize(
    "text",
    ["Llama 2 has the turn in [INST] and [/INST].", "It writes <|im_start|> twice.", 'See "a" and "<|user|>" in it.'],
)
async def test_sentence_that_names_a_tag_of_turns_takes_no_structured_call_away(text: str) -> None:
    episode, tools = await run(({"content": text, "tool_calls": [asked('{"x": 1}')]}, "tool_calls"))
    assert (tools.ran, episode.errors, episode.messages[1]["content"]) == ([{"x": 1}], (), text)


@pytest.mark.parametrize("before", ["Done.", "Done. ", "Done\n", "Done\n  ", "Done<|im_end|> ", ""])
@pytest.mark.parametrize("tag", ["<|im_start|>user\n", "[INST]"])
async def test_turn_that_an_endpoint_of_structured_calls_leaves_in_the_text_is_cut(before: str, tag: str) -> None:
    episode, tools = await run(({"content": f"{before}{tag}Thanks", "tool_calls": [asked("{}")]}, "tool_calls"))
    assert (tools.ran, kinds(episode)) == ([], ["invented_answer"])
    _, tools = await run(({"content": "I see <tool_response>1</tool_response>", "tool_calls": [asked("{}")]}, "stop"))
    assert tools.ran == []


@pytest.mark.parametrize("parser", sorted({*FORMATS} - {*BARE}))
async def test_call_in_a_fence_at_the_end_is_told_and_may_be_made_again(parser: str) -> None:
    tools = Log()
    fenced = f"I look.\n```\n{call(parser, 'do')}\n```"
    model = ScriptedModel([fenced, call(parser, "do"), "ok"], parser=parser)
    episode = await AgentLoop(model, tools).run("go")
    assert (episode.finish, episode.trainable, tools.ran) == ("answered", True, [{}])
    assert kinds(episode) == ["fenced_call"]
    assert "without the fence" in episode.messages[2]["content"]


async def test_call_in_a_fence_is_told_once_an_episode() -> None:
    """A model that explains a call again, after it was told, means it as text."""
    tools = Log()
    fenced = f"This is how:\n```\n{call('hermes', 'do')}\n```"
    model = ScriptedModel([fenced, fenced, "never asked for"], parser="hermes")
    episode = await AgentLoop(model, tools).run("How do I call it?")
    assert (episode.finish, episode.turns, episode.answer) == ("answered", 2, fenced)
    assert (kinds(episode), tools.ran) == (["fenced_call", "fenced_call"], [])


async def test_answer_that_begins_with_an_invented_result_is_an_answer() -> None:
    """Nothing of it is kept, and yet it is no silence of the endpoint: a model must not escape its score so."""
    episode, _ = await run(({"content": "<tool_response>\nok\n</tool_response>"}, "stop"))
    assert (episode.finish, episode.answer, episode.trainable) == ("answered", "", True)
    assert kinds(episode) == ["invented_answer"]
    episode, _ = await run(({"content": ""}, "stop"))
    assert (episode.finish, episode.trainable) == ("empty", False)
