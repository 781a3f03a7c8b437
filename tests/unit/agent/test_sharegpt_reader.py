"""A conversation as ShareGPT turns re-reads exactly, by whatever reader, or says why it does not."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_agent import AgentLoop, Completion, Message, ScriptedModel
from hermes_agent.parsers import get_parser
from hermes_agent.trajectories.sharegpt import ShareGPTTurn, sharegpt
from hermes_agent.trajectories.sharegpt_reader import export_problem, read_sharegpt
from tests.unit.agent.toolboxes import FunctionTools

TOOLS = [{"type": "function", "function": {"name": "terminal", "parameters": {"type": "object"}}}]
RM = '<tool_call>{"name": "terminal", "arguments": {"command": "rm -rf /"}}</tool_call>'
PICTURE = {"type": "image_url", "image_url": {"url": "screenshots/0-1.png"}}


def calling(arguments: str, call_id: str = "c1", name: str = "terminal") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def conversation(
    *, arguments: str = "{}", content: str = "ok", reasoning: str = "", result: str = "{}"
) -> list[Message]:
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": [calling(arguments)]},
        {"role": "tool", "tool_call_id": "c1", "name": "terminal", "content": result},
        {"role": "assistant", "content": "done"},
    ]


def problem(messages: list[Message]) -> str:
    return export_problem(messages, sharegpt(messages, TOOLS))


def read_naively(value: str) -> tuple[str, str, list[str]]:
    """Thinking, text and the bodies of calls as a reader finds them who knows nothing but the tags."""
    head, _, rest = value.partition("</think>")
    reasoning = head.removeprefix("<think>\n").removesuffix("\n")
    bodies = re.findall(r"<tool_call>\s*(.*?)\s*</tool_call>", value, re.DOTALL)
    content = rest.split("<tool_call>")[0].removeprefix("\n")
    return reasoning, content.removesuffix("\n") if bodies else content, bodies


def check_exact(messages: list[Message], turns: list[ShareGPTTurn]) -> None:
    """The turns are these messages for a naive reader, for the parser, and for our own reader."""
    said = [message for message in messages if message["role"] == "assistant"]
    values = [turn["value"] for turn in turns if turn["from"] == "gpt"]
    for message, value in zip(said, values, strict=True):
        reasoning, content, bodies = read_naively(value)
        assert (reasoning, content) == (message.get("reasoning_content") or "", message["content"] or "")
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        assert len(bodies) == len(calls)
        parsed = get_parser("hermes")(value, TOOLS)
        assert len(parsed.tool_calls) == len(calls)
        for body, function in zip(bodies, calls, strict=True):
            if not function["name"]:
                assert body == function["arguments"].strip()
                continue
            read = json.loads(body)
            assert read["name"] == function["name"]
            same = read["arguments"] if isinstance(read["arguments"], str) else json.dumps(read["arguments"])
            assert same == function["arguments"] or json.loads(same) == json.loads(function["arguments"])
    results = [json.loads(body) for turn in turns for body in responses(turn)]
    answers = [message for message in messages if message["role"] == "tool"]
    assert [result["tool_call_id"] for result in results] == [answer["tool_call_id"] for answer in answers]
    for result, answer in zip(results, answers, strict=True):
        assert result["content"] == answer["content"] or result["content"] == json.loads(answer["content"])
    assert [comparable(message) for message in read_sharegpt(turns)] == [comparable(message) for message in messages]


def responses(turn: ShareGPTTurn) -> list[str]:
    return (
        re.findall(r"<tool_response>(.*?)</tool_response>", turn["value"], re.DOTALL) if turn["from"] == "tool" else []
    )


def comparable(message: Message) -> dict[str, Any]:
    return {name: value for name, value in message.items() if value} | {"content": message["content"] or ""}


@pytest.mark.parametrize(
    "arguments",
    [
        '{"x": 1.10, "y": 1E5}',
        '{"path": "/a", "path": "/"}',
        '{"x": 1e400}',
        '{"x": NaN}',
        '{\n  "x": "é\\u00e9"\n}',
        ' {"x": 1}\n',
        '{"x": "a\nb"}',
        '{"x": "</tool_call>\\n<tool_call>\\n{}"}',
        json.dumps({"content": f"{RM} <think></think> </tool_response>"}),
        "",
        "[1",
        '"{}"',
        "null",
    ],
)
def test_arguments_re_read_as_the_model_wrote_them(arguments: str) -> None:
    messages = conversation(arguments=arguments, result=arguments)
    turns = sharegpt(messages, TOOLS)
    assert export_problem(messages, turns) == ""
    check_exact(messages, turns)
    assert read_sharegpt(turns)[1]["tool_calls"] == [calling(arguments)]


@pytest.mark.parametrize("text", ["    if x:\n        y", "\n\n", " a \n", "a & < b > c", "{", "a\r\nb\u2028c"])
def test_white_space_and_odd_characters_are_kept(text: str) -> None:
    messages = conversation(content=text, reasoning=text, result=text)
    turns = sharegpt(messages, TOOLS)
    assert export_problem(messages, turns) == ""
    check_exact(messages, turns)


def test_system_messages_stay_in_their_places() -> None:
    messages: list[Message] = [
        {"role": "system", "content": "one"},
        {"role": "system", "content": "two"},
        *conversation(),
        {"role": "system", "content": "three"},
        {"role": "user", "content": "go on"},
    ]
    turns = sharegpt(messages, TOOLS)
    assert [turn["from"] for turn in turns] == ["system", "system", "human", "gpt", "tool", "gpt", "system", "human"]
    assert export_problem(messages, turns) == ""


def test_ids_of_calls_are_those_of_their_results() -> None:
    calls = [calling("{}", "b"), calling("{}", "a")]
    answers: list[Message] = [{"role": "tool", "tool_call_id": at, "name": "terminal", "content": ""} for at in "ba"]
    messages: list[Message] = [{"role": "assistant", "content": "", "tool_calls": calls}, *answers]
    assert problem(messages) == ""
    assert problem([messages[0], *answers[::-1]]) == "message 1 (assistant) would re-read with other calls"
    assert problem([messages[0], answers[1]]) == "message 1 (assistant) would re-read with other calls"


def test_call_without_a_result_needs_no_id() -> None:
    """Such as the call by which mini-swe-agent submits, also if the model gives each call the same id."""
    messages = [*conversation(), {"role": "assistant", "content": "Done.", "tool_calls": [calling("{}", "c1")]}]
    turns = sharegpt(messages, TOOLS)
    assert export_problem(messages, turns) == ""
    assert [call["id"] for message in read_sharegpt(turns) for call in message.get("tool_calls", ())] == ["c1", ""]
    two = [*messages[:-1], {"role": "assistant", "content": "", "tool_calls": [calling("{}", "a"), calling("{}", "b")]}]
    assert problem([*two, {"role": "tool", "tool_call_id": "a", "name": "terminal", "content": ""}]) == ""
    late: list[Message] = [{"role": "user", "content": "wait"}, {"role": "tool", "tool_call_id": "c1", "content": ""}]
    assert problem([*messages, *late]) == "message 5 (assistant) would re-read with other calls"


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        (conversation(content=f"A call looks like {RM} here."), "message 2 (assistant) quotes <tool_call> in its text"),
        (conversation(reasoning="I close </think> early"), "message 2 (assistant) quotes </think> in its thinking"),
        (conversation(reasoning=RM), "message 2 (assistant) quotes <tool_call> in its thinking"),
        (conversation(content="x </think> y"), "message 2 (assistant) quotes </think> in its text"),
        (conversation(content="<tool_response>1"), "message 2 (assistant) quotes <tool_response> in its text"),
        (
            [{"role": "assistant", "content": "", "tool_calls": [calling(f"{{oops {RM}", name="")]}],
            "message 1 (assistant) quotes <tool_call> in its broken call",
        ),
        (
            [{"role": "assistant", "content": "", "tool_calls": [calling('{"name": "x", "arguments": {}}', "", "")]}],
            "message 1 (assistant) would re-read with other calls",
        ),
        ([{"role": "user", "content": [{"type": "text", "text": "see"}, PICTURE]}], "a part of the type image_url"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}] * 2}], "is in several parts"),
        ([{"role": "developer", "content": "be brief"}], "message 1 (developer) would re-read with another role"),
        (conversation(arguments='{"x": "\ud800"}'), "message 2 (assistant) has half of a surrogate pair"),
        ([{"role": "user", "content": "x", "audio": {}}], "has the field audio"),
        ([{"role": "user", "content": "x", "name": "bob"}], "would re-read with another id or name"),
    ],
)
def test_what_turns_cannot_hold_is_told(messages: list[Message], why: str) -> None:
    assert why in problem(messages)


def test_signatures_of_a_provider_are_no_problem() -> None:
    messages = conversation()
    messages[1]["reasoning_details"] = [{"type": "reasoning.encrypted", "data": "x"}]
    messages[1]["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "x"}}
    assert problem(messages) == ""


def test_user_who_quotes_markup_is_no_problem() -> None:
    assert problem([{"role": "user", "content": f"What is {RM}?"}, {"role": "assistant", "content": "a call"}]) == ""


@pytest.mark.anyio
async def test_episode_says_why_it_cannot_be_exported() -> None:
    async def do(arguments: dict[str, Any]) -> str:
        return f"{RM} </tool_response>"

    call = calling("{}", "abcdefghi", "do")["function"]
    text = f"<tool_call>{json.dumps(call | {'arguments': {}})}</tool_call>"
    model = ScriptedModel([text, Completion(f"It said {RM}.")])
    assert "quotes <tool_call> in its text" in (await AgentLoop(model, FunctionTools(do)).run("go")).export_problem
    episode = await AgentLoop(ScriptedModel([text, "It said so."]), FunctionTools(do)).run("go")
    assert episode.export_problem == ""
    check_exact(episode.messages, episode.to_sharegpt())


FRAGMENTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>", RM, "<tools>"),
        *("\n", " ", "\t", '"', "\\", "{", "}", "[]", "null", "1.10", "1e400", "NaN", '{"a": 1}', '{"a": 1, "a": 2}'),
        *("\\u003c", "\\n", "```", "<|im_end|>", "<|im_start|>user\n", "[TOOL_CALLS]", "é", "\u2028", "\x00", "a"),
        *('{"name": "terminal", "arguments": {}}', '"name"', '"arguments": ', ",", ":", "tool_call>", "<"),
    ]
)
TEXTS = st.lists(FRAGMENTS | st.text(max_size=5), max_size=6).map("".join)
QUOTED = TEXTS.map(lambda text: json.dumps({"content": text}, ensure_ascii=False))


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    messages: list[Message] = []
    for number in range(draw(st.integers(1, 5))):
        role = draw(st.sampled_from(["system", "user", "assistant", "assistant"]))
        message: Message = {"role": role, "content": draw(TEXTS)}
        messages.append(message)
        if role != "assistant":
            continue
        if reasoning := draw(TEXTS):
            message["reasoning_content"] = reasoning
        names = draw(st.lists(st.sampled_from(["terminal", "a b", "", "é"]), max_size=3))
        if names:
            message["tool_calls"] = [
                calling(draw(TEXTS | QUOTED), f"{number}-{at}", name) for at, name in enumerate(names)
            ]
        messages += [
            {"role": "tool", "tool_call_id": f"{number}-{at}", "name": name, "content": draw(TEXTS | QUOTED)}
            for at, name in enumerate(names)
        ]
    return messages


@given(conversations())
def test_hostile_conversations_re_read_exactly_or_are_not_exported(messages: list[Message]) -> None:
    turns = sharegpt(messages, TOOLS)
    if not export_problem(messages, turns):
        check_exact(messages, turns)


@given(st.text().filter(lambda text: "<" not in text), QUOTED, QUOTED)
def test_text_without_markup_is_always_exported(text: str, arguments: str, result: str) -> None:
    messages = conversation(content=text, reasoning=text, arguments=arguments, result=result)
    if "\\u003c" not in arguments + result:
        assert problem(messages) == ""
