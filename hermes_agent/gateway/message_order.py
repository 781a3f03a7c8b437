"""Brings the messages of a harness into an order that chat templates accept."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_agent.messages import Message, content_of, image_parts, message_text
from hermes_agent.parsers.base import derive_id, valid_id


def arrange_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the same conversation in the form that most chat templates accept.

    System and developer messages at the beginning become one system message; later ones become text of the user.
    Neighbours of one role are joined by a blank line, except results of tools. Texts in parts become one text, null
    becomes an empty text. Ids of calls that are not of nine letters and digits are replaced, and results get the names
    of their calls.

    The messages up to an assistant turn depend on no message after it. So a conversation that goes on after the turn
    begins with the same messages.
    """
    groups: list[list[Message]] = []
    calls = _Calls()
    last = ""
    for each in messages:
        message = each.copy()
        role = message["role"] = _find_role(str(each.get("role")), last)
        if not isinstance(each.get("content"), str):
            message["content"] = content_of(message_text(each), image_parts(each))
        if role == "assistant":
            calls.rename(message)
        elif role == "tool":
            calls.connect(message)
        if role == last != "tool":
            groups[-1].append(message)
        else:
            groups.append([message])
        last = role
    return [group[0] if len(group) == 1 else _join(group) for group in groups]


def with_call_ids(messages: Sequence[Message], ids: dict[str, str]) -> list[Message]:
    """Return the messages with the ids of these calls replaced in their results."""
    return [
        {**message, "tool_call_id": ids[message["tool_call_id"]]} if message.get("tool_call_id") in ids else message
        for message in messages
    ]


def _find_role(role: str, last: str) -> str:
    if role in ("system", "developer"):
        return "system" if last in ("", "system") else "user"
    return role


def _join(group: Sequence[Message]) -> Message:
    texts = filter(None, map(message_text, group))
    images = [part for message in group for part in image_parts(message)]
    joined = {name: value for message in group for name, value in message.items()}
    joined["content"] = content_of("\n\n".join(texts), images)
    calls = [call for message in group for call in message.get("tool_calls", ())]
    return {**joined, "tool_calls": calls} if calls else joined


class _Calls:
    """The calls of a conversation, by the ids that the harness gave them."""

    def __init__(self) -> None:
        self._count = 0
        self._by_id: dict[str, tuple[str, str]] = {}

    def rename(self, message: Message) -> None:
        """Give the calls of an assistant message ids that every template accepts."""
        renamed = []
        for call in message.pop("tool_calls", None) or ():
            number = valid_id(call["id"]) or derive_id("call", self._count)
            self._by_id[call["id"]] = number, call["function"]["name"]
            self._count += 1
            renamed.append(call if number == call["id"] else {**call, "id": number})
        if renamed:
            message["tool_calls"] = renamed

    def connect(self, message: Message) -> None:
        """Connect a result with its call."""
        harness_id = str(message.get("tool_call_id", ""))
        message["tool_call_id"], name = self._by_id.get(
            harness_id, (valid_id(harness_id) or derive_id("result", harness_id), "tool")
        )
        message.setdefault("name", name)
