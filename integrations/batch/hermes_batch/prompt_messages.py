"""Validation of the messages of a prompt: the conversation so far, in OpenAI format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_agent import Message
from hermes_agent.messages import image_parts, message_text
from hermes_exec.config import nearest

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "system": ("role", "content", "name"),
    "user": ("role", "content", "name"),
    "assistant": (
        *("role", "content", "name", "reasoning_content", "reasoning_details", "extra_content", "tool_calls"),
    ),
    "tool": ("role", "content", "name", "tool_call_id"),
}
"""The roles and the fields that a message of each may have."""
_CALL = ("id", "type", "function", "extra_content")
_FUNCTION = ("name", "arguments")


def check_messages(messages: Sequence[object]) -> list[Message]:
    """Return the messages without null fields.

    Raises:
        ValueError: If no chat completion API would accept a message: an unknown role or field, content of a wrong type,
            a result without a call or a call without a result. Also if the model cannot answer the last message. The
            text has the number of the message from 1.
    """
    if not messages:
        raise ValueError("are empty")
    checked = _check_conversation(messages)
    if checked[-1]["role"] not in ("user", "tool"):
        raise ValueError("must end with a message of the user or a tool, which the model can answer")
    if checked[-1]["role"] == "user" and not message_text(checked[-1]).strip() and not image_parts(checked[-1]):
        raise ValueError("end with a blank message")
    return checked


def check_prefill(messages: Sequence[object]) -> list[Message]:
    """Return the messages without null fields. They stand between the system message and the prompt.

    Raises:
        ValueError: As `check_messages`, but for the end, or if there is a system message.
    """
    checked = _check_conversation(messages)
    for number, message in enumerate(checked, 1):
        if message["role"] == "system":
            raise ValueError(f"message {number} has the role 'system'; use ephemeral_system_prompt for its text")
    return checked


def _check_conversation(messages: Sequence[object]) -> list[Message]:
    checked: list[Message] = []
    pending_ids: list[str] = []
    for number, message in enumerate(messages, 1):
        try:
            checked.append(_validate(message))
            _check_order(checked[-1], pending_ids)
        except ValueError as error:
            raise ValueError(f"message {number} {error}") from None
    if pending_ids:
        raise ValueError(f"have no result of the call {pending_ids[0]!r}")
    return checked


def _validate(message: object) -> Message:
    if not isinstance(message, dict):
        raise ValueError("is not a JSON object")
    role = message.get("role")
    if not isinstance(role, str) or role not in _FIELDS:
        raise ValueError(f"has the role {role!r}; {nearest(str(role), _FIELDS)}")
    checked = {name: value for name, value in message.items() if value is not None}
    for name in checked.keys() & {"content", "tool_calls"}:
        checked[name] = _drop_nulls(checked[name])
    _check_names(checked, _FIELDS[role])
    for name in ("name", "reasoning_content", "tool_call_id"):
        if not isinstance(checked.get(name, ""), str):
            raise ValueError(f"has a {name} that is not a text")
    if role == "tool" and not checked.get("tool_call_id"):
        raise ValueError("has no tool_call_id")
    if "tool_calls" in checked:
        _check_calls(checked["tool_calls"])
    if "content" not in checked and not checked.get("tool_calls"):
        raise ValueError("has no content")
    _check_content(role, checked.setdefault("content", ""))
    if "\0" in message_text(checked):
        raise ValueError("has a NUL byte")
    return checked


def _drop_nulls(value: object) -> object:
    """Remove null fields, which table writers add to each part to give all parts the same fields."""
    if isinstance(value, dict):
        return {name: _drop_nulls(part) for name, part in value.items() if part is not None}
    return [_drop_nulls(part) for part in value] if isinstance(value, list) else value


def _check_names(entry: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for name in entry:
        if name not in allowed:
            raise ValueError(f"has an unknown entry {name!r}; {nearest(name, allowed)}")


def _check_content(role: str, content: object) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise ValueError("has content that is neither a text nor a list of parts")
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            continue
        image = part.get("image_url") if kind == "image_url" and role in ("user", "tool") else None
        if not (isinstance(image, dict) and isinstance(image.get("url"), str)):
            raise ValueError(
                'has a content part that is neither {"type": "text", "text": …} nor, from the user or a tool, '
                '{"type": "image_url", "image_url": {"url": …}}'
            )


def _check_calls(calls: object) -> None:
    if not isinstance(calls, list):
        raise ValueError("has tool_calls that are not a list")
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(call.get("id"), str) or not call["id"]:
            raise ValueError("has a call without an id and a function")
        _check_names(call, _CALL)
        _check_names(function, _FUNCTION)
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise ValueError("has a call whose function has no name")
        if not isinstance(function.get("arguments"), str):
            raise ValueError("has a call whose arguments are not the text of a JSON object")
        call.setdefault("type", "function")


def _check_order(message: Message, pending_ids: list[str]) -> None:
    """Check that results follow their calls directly. `pending_ids` are the ids of calls without a result yet."""
    if message["role"] == "tool":
        if message["tool_call_id"] not in pending_ids:
            raise ValueError(f"is a result without a call before it: {message['tool_call_id']!r}")
        pending_ids.remove(message["tool_call_id"])
    elif pending_ids:
        raise ValueError(f"comes before the result of the call {pending_ids[0]!r}")
    pending_ids += [str(call["id"]) for call in message.get("tool_calls") or ()]
