"""ShareGPT turns and the counts of tool calls."""

from __future__ import annotations

import json
from typing import Any

from hermes_agent.trajectories.sharegpt import gpt_value, sharegpt, system_prompt, tool_stats

TOOLS = [{"type": "function", "function": {"name": "do", "description": "Do {it}", "parameters": {"type": "object"}}}]


def called(name: str, arguments: str, call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_system_turn_has_the_tools_as_json() -> None:
    prompt = system_prompt(TOOLS)
    listed = json.loads(prompt.split("<tools>\n")[1].split("\n</tools>")[0])
    assert listed == [{"name": "do", "description": "Do {it}", "parameters": {"type": "object"}, "required": None}]
    assert prompt.startswith("You are a function calling AI model.")
    assert prompt.endswith("<tool_call>\n{'name': <function-name>,'arguments': <args-dict>}\n</tool_call>")


def test_turns() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": "ok",
            "reasoning_content": "two of them",
            "tool_calls": [called("do", '{"x": "é"}'), called("do", "[1", "c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "do", "content": '{"output": "é"}'},
        {"role": "tool", "tool_call_id": "c2", "name": "do", "content": "plain"},
        {"role": "assistant", "content": "done"},
    ]
    turns = sharegpt(messages, TOOLS)
    assert [turn["from"] for turn in turns] == ["system", "human", "gpt", "tool", "gpt"]
    assert turns[0]["value"] == f"{system_prompt(TOOLS)}\n\nBe brief."
    assert turns[1]["value"] == "go"
    assert turns[2]["value"] == (
        "<think>\ntwo of them\n</think>\nok\n"
        '<tool_call>\n{"name": "do", "arguments": {"x": "é"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "do", "arguments": "[1"}\n</tool_call>'
    )
    assert turns[3]["value"] == (
        '<tool_response>\n{"tool_call_id": "c1", "name": "do", "content": {"output": "é"}}\n</tool_response>\n'
        '<tool_response>\n{"tool_call_id": "c2", "name": "do", "content": "plain"}\n</tool_response>'
    )
    assert turns[4]["value"] == "<think>\n</think>\ndone"


def test_results_of_two_turns_stay_apart() -> None:
    tool = {"role": "tool", "tool_call_id": "c", "name": "do", "content": "1"}
    turns = sharegpt([{"role": "user", "content": "go"}, tool, {"role": "assistant", "content": ""}, tool], TOOLS)
    assert [turn["from"] for turn in turns] == ["system", "human", "tool", "gpt", "tool"]


def test_broken_call_stands_as_the_model_wrote_it() -> None:
    message = {"role": "assistant", "content": "", "tool_calls": [called("", "{'name': oops")]}
    assert gpt_value(message) == "<think>\n</think>\n<tool_call>\n{'name': oops\n</tool_call>"


def test_stats_have_every_offered_tool() -> None:
    stats = tool_stats([("a", True), ("a", False), ("ghost", True)], ["b", "a"])
    assert stats == {"a": {"count": 2, "success": 1, "failure": 1}, "b": {"count": 0, "success": 0, "failure": 0}}
