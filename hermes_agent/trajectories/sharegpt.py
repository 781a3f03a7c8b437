"""Renders a conversation as ShareGPT turns, and counts tool calls.

The turns have the form of the Hermes function-calling data sets: `system` (the tools), `human`, `gpt` (thinking, text,
`<tool_call>` blocks), `tool` (one turn for all results of a turn, `<tool_response>` blocks). `sharegpt_reader` reads
them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from hermes_agent.messages import ToolCall, calls_of, message_text
from hermes_agent.parsers.json_text import JsonValue, decode_whole

ShareGPTTurn = TypedDict("ShareGPTTurn", {"from": str, "value": str})
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
    """The number of calls of a tool, by success."""

    count: int
    success: int
    failure: int


def system_prompt(tools: Iterable[Mapping[str, Any]], example: str | None = None) -> str:
    """Return the function-calling prompt of the Hermes data sets with these tools.

    With an `example` of a call the prompt asks for that form instead of the form of the data sets.
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


def sharegpt(messages: Sequence[Mapping[str, Any]], tools: Iterable[Mapping[str, Any]]) -> list[ShareGPTTurn]:
    """Return a conversation as ShareGPT turns.

    A system message at the beginning follows the function-calling prompt in the first turn; every other system message
    is a `system` turn in its place. Results of one turn share a turn. Texts and arguments keep their white space.
    Images and call ids of the model are left out; results have their ids.
    """
    turns: list[ShareGPTTurn] = [{"from": "system", "value": system_prompt(tools)}]
    answering = False
    for index, message in enumerate(messages):
        role, text = message.get("role"), message_text(message)
        if role == "assistant":
            turns.append({"from": "gpt", "value": gpt_value(message)})
        elif role == "tool" and answering:
            turns[-1] = {"from": "tool", "value": f"{turns[-1]['value']}\n{_tool_response(message)}"}
        elif role == "tool":
            turns.append({"from": "tool", "value": _tool_response(message)})
        elif role == "system" and index == 0:
            turns[0] = {"from": "system", "value": f"{turns[0]['value']}\n\n{text}"}
        else:
            turns.append({"from": "system" if role == "system" else "human", "value": text})
        answering = role == "tool"
    return turns


def gpt_value(message: Mapping[str, Any]) -> str:
    """Return an assistant message as text: thinking (always present, perhaps empty), text, a block for each call."""
    reasoning = str(message.get("reasoning_content") or "")
    parts = [f"<think>\n{reasoning}\n</think>" if reasoning else "<think>\n</think>"]
    if text := message_text(message):
        parts.append(text)
    parts += [tool_call_block(call) for call in calls_of(message)]
    return "\n".join(parts)


def tool_call_block(call: ToolCall) -> str:
    """Return a call as a `<tool_call>` block.

    Arguments are kept as the model wrote them, or as a JSON string if they are not one JSON object that every reader
    understands alike. The block of a call without a name, which no parser understood, holds the model's text.
    """
    if not call.name:
        return f"<tool_call>\n{call.arguments}\n</tool_call>"
    body = f'{{"name": {_json(call.name)}, "arguments": {_embed_json(call.arguments, dict)}}}'
    return f"<tool_call>\n{_without_tags(body)}\n</tool_call>"


def tool_stats(calls: Iterable[tuple[str, bool]], offered: Iterable[str]) -> dict[str, ToolStats]:
    """Return the counts of each of the `offered` tools, zeros included.

    `calls` are the name of each call and whether it succeeded. Tools that were not offered get no entry; the record
    counts them apart.
    """
    stats: dict[str, ToolStats] = {name: {"count": 0, "success": 0, "failure": 0} for name in sorted(offered)}
    for name, ok in calls:
        if name in stats:
            stats[name]["count"] += 1
            stats[name]["success" if ok else "failure"] += 1
    return stats


def _tool_response(message: Mapping[str, Any]) -> str:
    call_id, name = (_json(str(message.get(field) or "")) for field in ("tool_call_id", "name"))
    content = _embed_json(message_text(message), dict, list)
    body = f'{{"tool_call_id": {call_id}, "name": {name}, "content": {content}}}'
    return f"<tool_response>\n{_without_tags(body)}\n</tool_response>"


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_TAG = re.compile(r"<(?=/?(?:think|tool_call|tool_response)>)")


def _without_tags(body: str) -> str:
    """Return JSON with the tags in its strings escaped, so that readers that search for tags find none."""
    return _TAG.sub(r"\\u003c", body)


def _embed_json(text: str, *kinds: type) -> str:
    """Return the text itself if it is JSON of one of these types and has one meaning, else as a JSON string."""
    decoded = decode_whole(text)
    if not isinstance(decoded, JsonValue) or not isinstance(decoded.value, kinds):
        return _json(text)
    try:
        json.loads(text)  # most readers refuse raw line breaks in strings
    except (ValueError, RecursionError):
        return _json(text)
    return text
