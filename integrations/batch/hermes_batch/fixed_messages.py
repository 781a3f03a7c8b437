"""Messages with fixed fields of one type each, for tables, and back in OpenAI form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from hermes_agent.messages import Message, message_text
from hermes_agent.models.chat_answer import well_formed
from hermes_agent.parsers.json_text import dump

_FIXED = frozenset({"role", "content", "reasoning_content", "tool_calls", "tool_call_id"})


class FixedCall(TypedDict):
    """A tool call of a message. `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str


class FixedMessage(TypedDict):
    """A message whose fields have one type each.

    `content` is the text, and `reasoning` the thinking. `tool_call_id` names the call that a result answers. `extra`
    is a JSON object with everything else: further fields (`name`, `reasoning_details`), a `content` of several parts,
    such as images, and `tool_calls` with further fields. Empty: nothing else.
    """

    role: str
    content: str | None
    reasoning: str | None
    tool_calls: list[FixedCall]
    tool_call_id: str | None
    extra: str


def to_fixed_message(message: Mapping[str, Any]) -> FixedMessage:
    """Return a message in OpenAI form with fixed fields. `to_openai_message` makes the same message of it."""
    calls = message.get("tool_calls")
    fixed_calls = [_to_fixed_call(call) for call in calls or () if isinstance(call, Mapping)] if _is_list(calls) else []
    fixed: FixedMessage = {
        "role": _text(message.get("role")) or "",
        "content": None if message.get("content") is None else well_formed(message_text(message)),
        "reasoning": _text(message.get("reasoning_content")),
        "tool_calls": fixed_calls,
        "tool_call_id": _text(message.get("tool_call_id")),
        "extra": "",
    }
    extra = {name: value for name, value in message.items() if name not in _FIXED}
    plain = to_openai_message(fixed)
    extra |= {
        name: message[name] for name in _FIXED & message.keys() if message[name] and message[name] != plain.get(name)
    }
    if extra:
        fixed["extra"] = well_formed(dump(extra))
    return fixed


def to_openai_message(message: Mapping[str, Any]) -> Message:
    """Return a message with fixed fields in OpenAI form."""
    result: Message = {"role": message["role"], "content": message["content"]}
    if message["reasoning"] is not None:
        result["reasoning_content"] = message["reasoning"]
    if message["tool_calls"]:
        result["tool_calls"] = list(map(_to_openai_call, message["tool_calls"]))
    if message["tool_call_id"] is not None:
        result["tool_call_id"] = message["tool_call_id"]
    extra: Message = json.loads(message["extra"] or "{}")
    return {**result, **extra}


def to_openai_messages(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Return the `messages` of a row of `hermes_batch.load` in OpenAI form."""
    return list(map(to_openai_message, messages))


def _to_fixed_call(call: Mapping[str, Any]) -> FixedCall:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments")
    return {
        "id": _text(call.get("id")) or "",
        "name": _text(function.get("name")) or "",
        "arguments": well_formed(arguments if isinstance(arguments, str) else dump(arguments)),
    }


def _to_openai_call(call: Mapping[str, Any]) -> Message:
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": call["name"], "arguments": call["arguments"]},
    }


def _text(value: object) -> str | None:
    return well_formed(value) if isinstance(value, str) else None


def _is_list(value: object) -> bool:
    return isinstance(value, list)
