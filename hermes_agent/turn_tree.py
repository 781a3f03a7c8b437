"""The turns of a model as a tree: a request continues the turn whose conversation and answer it repeats."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Generic, Self, TypeVar

from hermes_agent.messages import Completion, Message, message_text

Key = bytes
"""A digest of the messages of a conversation. Equal keys mean equal conversations."""


@dataclass(eq=False)
class TurnNode:
    """One request and the answer of the model.

    Attributes:
        parent: The turn whose conversation and answer the request repeats. None: it repeats no turn.
        completion: The answer, with its token ids if the model returns them.
        request_key: The key of all messages of the request.
        size: The number of these messages, and one for the answer.
        key: The key of all messages of the request and the answer.
    """

    parent: Self | None = field(repr=False)
    completion: Completion
    request_key: Key
    size: int
    key: Key = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.key = extend_key(self.request_key, self.completion)

    @property
    def continuable(self) -> bool:
        """Whether a prompt may go on after the ids of this turn. The ids of an answer that was cut because the model
        went on in another role include text that is not in its message.
        """
        return not self.completion.cut_at_invention

    def continues_to(self, keys: Sequence[Key]) -> bool:
        """Return whether a conversation with these keys repeats this turn and its answer."""
        return self.continuable and len(keys) > self.size and keys[self.size] == self.key

    def prompted_ids(self) -> list[int]:
        """Return all ids of the conversation: the prompts and the sampled ids up to the end of this turn."""
        ids: list[int] = []
        for node in self.path():
            if node.completion.tokens is not None:
                ids += node.completion.tokens.added
                ids += node.completion.tokens.ids
        return ids

    def path(self) -> list[Self]:
        """Return the turns of the conversation, from its first to this one."""
        path = [self]
        while (parent := path[-1].parent) is not None:
            path.append(parent)
        return path[::-1]


NodeT = TypeVar("NodeT", bound=TurnNode)


class TurnIndex(Generic[NodeT]):
    """Finds turns by the keys of conversations."""

    def __init__(self) -> None:
        self._nodes: defaultdict[Key, list[NodeT]] = defaultdict(list)

    def add(self, node: NodeT) -> None:
        """Add a turn."""
        self._nodes[node.key].append(node)

    def find(self, keys: Sequence[Key]) -> list[NodeT]:
        """Return the turns that these keys of a conversation continue: of all turns that they repeat the longest. They
        are several if equal requests got equal answers.
        """
        for key in reversed(keys):
            nodes = [node for node in self._nodes.get(key, ()) if node.continuable]
            if nodes:
                return nodes
        return []


def conversation_keys(messages: Sequence[Message], start: Key = b"") -> list[Key]:
    """Return the keys of the first 0, 1, 2, … messages of a conversation.

    Messages count as equal if a model reads the same from them: their role, their text (of the assistant without outer
    white space), images, and the names and parsed arguments of calls. The ids of calls and the thinking of earlier
    turns do not count, because harnesses rewrite them or leave them out.

    Args:
        messages: The conversation.
        start: The key of no message. Conversations with different ones have no key in common.
    """
    keys, places, count = [start], dict[str, str](), 0
    for message in messages:
        content, role = message.get("content"), message.get("role")
        text = content if isinstance(content, str) else message_text(message)
        if role == "assistant":
            parts = ["assistant", text.strip()]
            for call in message.get("tool_calls") or ():
                function = call["function"]
                parts += (function["name"], _canonical_arguments(function["arguments"]))
                places[call["id"]] = str(count)
                count += 1
        else:
            parts = [str(role), text]
            if role == "tool":
                parts.append(places.get(message.get("tool_call_id", ""), ""))
            if isinstance(content, list):
                parts += [_canonical(part) for part in content if isinstance(part, Mapping) and "text" not in part]
        keys.append(_extend(keys[-1], parts))
    return keys


def extend_key(key: Key, completion: Completion) -> Key:
    """Return the key of a conversation and an answer to it."""
    parts = ["assistant", (completion.content or "").strip()]
    for call in completion.tool_calls:
        parts += (call.name, _canonical_arguments(call.arguments))
    return _extend(key, parts)


def tools_key(name: str, tools: Sequence[Mapping[str, Any]]) -> Key:
    """Return the key with which conversations begin that are of one model and have these tools."""
    return _extend(b"", [name, _canonical(tools)])


def _extend(key: Key, parts: Iterable[str]) -> Key:
    text = "".join([f"{len(part)}:{part}" for part in parts])
    return blake2b(text.encode("utf-8", "replace"), key=key, digest_size=16).digest()


def _canonical_arguments(text: str) -> str:
    """Return arguments in one form, whatever their white space and the order of their names.

    A client in JavaScript writes the number 1.0 as 1. Arguments that are no JSON object are sent to clients of some
    dialects as `{"arguments": text}`.
    """
    try:
        value = _DECODER.decode(text)
        return _canonical(value if isinstance(value, dict) else {"arguments": text})
    except (ValueError, RecursionError):
        return _canonical({"arguments": text})


def _plain_number(text: str) -> float | int:
    number = float(text)
    return int(number) if number.is_integer() else number


# Made once: json.loads and json.dumps make them for each call.
_DECODER = json.JSONDecoder(parse_float=_plain_number)
_canonical = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str).encode
