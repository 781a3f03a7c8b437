"""Trajectory formats: a conversation as ShareGPT turns, and the counts of tool calls that go with it.

The turns are those of the Hermes function-calling data sets: `system` (the tools), `human`, `gpt` (thinking, text,
<tool_call> blocks), `tool` (one turn for all results of a turn, <tool_response> blocks).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from hermes_agent.messages import ToolCall, called, message_text

Turn = TypedDict("Turn", {"from": str, "value": str})
"""One ShareGPT turn."""

_CALL_SCHEMA = (
    "{'title': 'FunctionCall', 'type': 'object', 'properties': {'name': {'title': 'Name', 'type': 'string'}, "
    "'arguments': {'title': 'Arguments', 'type': 'object'}}, 'required': ['name', 'arguments']}"
)


# One paragraph in the data sets, with single quotes in its schema and example.
_SYSTEM = (
    "You are a function calling AI model. You are provided with function signatures within <tools> </tools> XML tags. "
    "You may call one or more functions to assist with the user query. If available tools are not relevant in "
    "assisting with user query, just respond in natural conversational language. Don't make assumptions about what "
    "values to plug into functions. After calling & executing the functions, you will be provided with function "
    "results within <tool_response> </tool_response> XML tags. Here are the available tools:\n"
    "<tools>\n{tools}\n</tools>\n"
)
_CALLS = (
    "For each function call return a JSON object, with the following pydantic model json schema for each:\n"
    "{schema}\n"
    "Each function call should be enclosed within <tool_call> </tool_call> XML tags.\n"
    "Example:\n<tool_call>\n{{'name': <function-name>,'arguments': <args-dict>}}\n</tool_call>"
)


class ToolStats(TypedDict):
    """How often a tool was called, and with what success."""

    count: int
    success: int
    failure: int


def system_prompt(tools: Iterable[Mapping[str, Any]], example: str | None = None) -> str:
    """The function-calling prompt of the Hermes data sets, with these tools in it. With an `example` of a call it asks
    for that form instead of the data sets' own.
    """
    functions = [tool.get("function", tool) for tool in tools]
    listed = [
        {
            "name": function.get("name"),
            "description": function.get("description", ""),
            "parameters": function.get("parameters", {}),
            "required": None,
        }
        for function in functions
    ]
    calls = _CALLS.format(schema=_CALL_SCHEMA) if example is None else f"Write each function call like this:\n{example}"
    return _SYSTEM.format(tools=json.dumps(listed, ensure_ascii=False)) + calls


def sharegpt(messages: Sequence[Mapping[str, Any]], tools: Iterable[Mapping[str, Any]]) -> list[Turn]:
    """A conversation as ShareGPT turns. System messages follow the function-calling prompt in the first turn; results
    of one turn share a turn.
    """
    told = [message_text(message) for message in messages if message.get("role") == "system"]
    turns: list[Turn] = [{"from": "system", "value": "\n\n".join([system_prompt(tools), *told])}]
    answering = False
    for message in messages:
        role = message.get("role")
        if role == "assistant":
            turns.append({"from": "gpt", "value": gpt_value(message)})
        elif role == "tool" and answering:
            turns[-1] = {"from": "tool", "value": f"{turns[-1]['value']}\n{_tool_response(message)}"}
        elif role == "tool":
            turns.append({"from": "tool", "value": _tool_response(message)})
        elif role != "system":
            turns.append({"from": "human", "value": message_text(message)})
        answering = role == "tool"
    return turns


def gpt_value(message: Mapping[str, Any]) -> str:
    """An assistant message as text: the thinking (always there, perhaps empty), the text, a block for each call."""
    reasoning = str(message.get("reasoning_content") or "").strip()
    parts = [f"<think>\n{reasoning}\n</think>" if reasoning else "<think>\n</think>"]
    if text := message_text(message).strip():
        parts.append(text)
    parts += [tool_call_block(call) for call in called(message)]
    return "\n".join(parts)


def tool_call_block(call: ToolCall) -> str:
    """A call as a <tool_call> block; one that was not understood stands as the model wrote it."""
    if not call.name:
        return f"<tool_call>\n{call.arguments}\n</tool_call>"
    body = json.dumps({"name": call.name, "arguments": _parsed(call.arguments)}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def tool_stats(calls: Iterable[tuple[str, bool]], known: Iterable[str]) -> dict[str, ToolStats]:
    """Counts by tool: each known tool is there, with zeros if need be, so that the schema of a data set is the same in
    every record.

    `calls` are the name of each call and whether it succeeded. Names outside of `known` get no entry here; the record
    counts them apart.
    """
    stats: dict[str, ToolStats] = {name: {"count": 0, "success": 0, "failure": 0} for name in sorted(known)}
    for name, ok in calls:
        if name in stats:
            stats[name]["count"] += 1
            stats[name]["success" if ok else "failure"] += 1
    return stats


def _tool_response(message: Mapping[str, Any]) -> str:
    content = _parsed(message_text(message))
    body = {"tool_call_id": message.get("tool_call_id", ""), "name": message.get("name", ""), "content": content}
    return f"<tool_response>\n{json.dumps(body, ensure_ascii=False)}\n</tool_response>"


def _parsed(text: str) -> object:
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text
