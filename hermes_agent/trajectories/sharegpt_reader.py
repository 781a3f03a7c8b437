"""Reads ShareGPT turns back into messages, and checks whether a rendering holds all of a conversation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from json.decoder import JSONDecoder
from typing import Any, NamedTuple

from hermes_agent.messages import Message, ToolCall, calls_of, message_text
from hermes_agent.parsers import get_parser
from hermes_agent.parsers.json_text import can_be_sent
from hermes_agent.trajectories.sharegpt import ShareGPTTurn, gpt_value, system_prompt

_SIGNATURES = frozenset({"reasoning_details", "extra_content"})
"""Fields of messages with which a provider recognises its own answers. They are no text of the conversation."""
_RENDERED = frozenset({"role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name"})
_QUOTED = re.compile(r"</?(?:think|tool_call|tool_response)>")
_ESCAPED = re.compile(r"\\u003c(?=/?(?:think|tool_call|tool_response)>)")
_END_OF_PROMPT = system_prompt(()).rpartition("</tools>\n")[2]
_DECODER = JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


def read_sharegpt(turns: Sequence[ShareGPTTurn]) -> list[Message]:
    """Return the messages that ShareGPT turns of `sharegpt` stand for.

    A `<think>` block ends at the first closing tag, and a call begins at every `<tool_call>`, whoever wrote it. Calls
    take the ids of the results after them, by position. A block that is not a call becomes a call without a name, with
    its text as the arguments. Nothing is raised: other turns of this kind are read as well as possible.
    """
    messages: list[Message] = []
    for index, turn in enumerate(turns):
        sender, value = turn["from"], turn["value"]
        if sender == "gpt":
            messages.append(_read_gpt(value))
        elif sender == "tool":
            results = [_read_response(body) for body in _bodies(value, "tool_response")[1]]
            if messages:
                messages[-1] = _with_ids(messages[-1], [str(result["tool_call_id"]) for result in results])
            messages += results
        elif sender == "system" and index == 0:
            prompt, whole, text = value.partition(_END_OF_PROMPT)
            if text or not whole:
                messages.append({"role": "system", "content": text.removeprefix("\n\n") if whole else prompt})
        else:
            messages.append({"role": "user" if sender == "human" else sender, "content": value})
    return messages


def export_problem(messages: Sequence[Message], turns: Sequence[ShareGPTTurn]) -> str:
    """Return why these turns, read back, differ from these messages. Empty if they do not.

    The comparison covers roles, texts, thinking, calls with their ids and the text of their arguments, and results. The
    id of a call without a result refers to nothing, and is left out.
    Markup that an assistant's text or thinking quotes is always a problem, because other readers take it for thinking
    or calls. A message that the parser of the Hermes format reads otherwise is a problem too, such as a text with the
    end of a turn.
    """
    for number, message in enumerate(messages, 1):
        if why := _unrenderable(message):
            return f"message {number} ({message.get('role')}) {why}"
    read = read_sharegpt(turns)
    if len(read) != len(messages):
        return f"{len(messages)} messages re-read as {len(read)}"
    answered = _list_answered_ids(messages)
    for number, (message, reread, ids) in enumerate(zip(messages, read, answered, strict=True), 1):
        facts = _Facts.of(message, ids)
        for name, before, after in zip(_Facts._fields, facts, _Facts.of(reread, ids), strict=True):
            if before != after:
                return f"message {number} ({message.get('role')}) would re-read with {name.replace('_', ' ')}"
        if facts.another_role == "assistant" and not _parses(message):
            return f"message {number} (assistant) would be parsed otherwise by a parser of the Hermes format"
    return ""


def _list_answered_ids(messages: Sequence[Message]) -> list[frozenset[str]]:
    """Return for each message the ids of the results after it, up to the next answer."""
    answered: list[frozenset[str]] = []
    ids: frozenset[str] = frozenset()
    for message in reversed(messages):
        answered.append(ids)
        if message.get("role") == "assistant":
            ids = frozenset()
        elif message.get("role") == "tool":
            ids |= {str(message.get("tool_call_id"))}
    return answered[::-1]


def _parses(message: Message) -> bool:
    """Return whether the parser of the Hermes format finds the texts and calls of an assistant message in its
    rendering.
    """
    parsed, calls = get_parser("hermes")(gpt_value(message), ()), calls_of(message)
    texts = (parsed.content or "", parsed.reasoning or "")
    return (
        [text.strip() for text in texts] == [text.strip() for text in (message_text(message), _thinking(message))]
        and len(parsed.tool_calls) == len(calls)
        and all(read.name in ("", call.name) for read, call in zip(parsed.tool_calls, calls, strict=True))
    )


def _thinking(message: Mapping[str, Any]) -> str:
    return str(message.get("reasoning_content") or "")


def _unrenderable(message: Message) -> str:
    """Return the part of a message that no turn can hold. Empty if there is none."""
    content = message.get("content")
    if isinstance(content, list):
        kinds = [str(part.get("type")) if isinstance(part, Mapping) else "unknown" for part in content]
        if other := next((kind for kind in kinds if kind != "text"), None):
            return f"has a part of the type {other}, and turns are text"
        if len(kinds) > 1:
            return "is in several parts, and a turn is one text"
    renderable = _RENDERED | _SIGNATURES
    if other := next((name for name in message if name not in renderable and message[name] is not None), None):
        return f"has the field {other}, which turns do not have"
    if not all(
        map(can_be_sent, (message_text(message), _thinking(message), *(call.arguments for call in calls_of(message))))
    ):
        return "has half of a surrogate pair, which no file holds"
    if message.get("role") != "assistant":
        return ""
    broken = [call.arguments for call in calls_of(message) if not call.name]
    for part, text in (
        ("text", message_text(message)),
        ("thinking", _thinking(message)),
        *(("broken call", text) for text in broken),
    ):
        if quoted := _QUOTED.search(text):
            return f"quotes {quoted.group()} in its {part}"
    return ""


class _Facts(NamedTuple):
    """All of a message that a rendering has to hold."""

    another_role: str
    another_text: str
    other_thinking: str
    other_calls: list[ToolCall]
    another_id_or_name: tuple[str, str]

    @classmethod
    def of(cls, message: Mapping[str, Any], answered: frozenset[str]) -> _Facts:
        """Return the facts of a message, with the ids of the `answered` calls.

        A field that is missing, None or empty is the same.
        """
        calls = [call if call.id in answered else call._replace(id="") for call in calls_of(message)]
        names = (str(message.get("tool_call_id") or ""), str(message.get("name") or ""))
        return cls(str(message.get("role")), message_text(message), _thinking(message), calls, names)


def _read_gpt(value: str) -> Message:
    thought, closed, rest = value.removeprefix("<think>\n").partition("</think>")
    if not (closed and value.startswith("<think>\n")):
        thought, rest = "", value
    content, bodies = _bodies(rest, "tool_call")
    message: Message = {"role": "assistant", "content": content}
    if thought:
        message["reasoning_content"] = thought.removesuffix("\n")
    if calls := [_read_call(body) for body in bodies]:
        message["tool_calls"] = [
            {"id": "", "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls
        ]
    return message


def _bodies(text: str, tag: str) -> tuple[str, list[str]]:
    """Return the text around blocks, and the bodies of the blocks."""
    before, *blocks = text.split(f"<{tag}>")
    texts, bodies = [before.removeprefix("\n")], []
    if blocks:
        texts[0] = texts[0].removesuffix("\n")
    for block in blocks:
        body, _, after = block.partition(f"</{tag}>")
        bodies.append(body.removeprefix("\n").removesuffix("\n"))
        texts.append(after.removesuffix("\n"))
    return "".join(texts), bodies


def _read_call(body: str) -> tuple[str, str]:
    """Return the name and the arguments of a call."""
    whole = _ESCAPED.sub("<", body)
    members = dict(_members(whole))
    name = _text(members.get("name", ""))
    return (name, _text(members["arguments"])) if name and "arguments" in members else ("", body)


def _read_response(body: str) -> Message:
    members = {name: _text(raw) for name, raw in _members(_ESCAPED.sub("<", body))}
    ids = {name: members.get(name, "") for name in ("tool_call_id", "name")}
    return {"role": "tool", **ids, "content": members.get("content", body)}


def _with_ids(message: Message, ids: Sequence[str]) -> Message:
    """Return the message with these ids for its calls, as far as they go."""
    calls = message.get("tool_calls") or []
    all_ids = [*ids, *[""] * len(calls)]
    return (
        {**message, "tool_calls": [{**call, "id": all_ids[at]} for at, call in enumerate(calls)]} if calls else message
    )


def _text(raw: str) -> str:
    """Return the text of a JSON string. Any other value stays as it is written."""
    if not raw.lstrip().startswith('"'):
        return raw
    text = json.loads(raw)
    return text if isinstance(text, str) else raw


def _members(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a JSON object, each value as it is written. Yield nothing if it is incomplete."""
    members: list[tuple[str, str]] = []
    at = _skip(text, 0)
    try:
        while text[at] != "}":
            if text[at] != ("," if members else "{"):
                return
            if text[at := _skip(text, at + 1)] == "}" and not members:
                return
            name, at = _DECODER.raw_decode(text, at)
            if not isinstance(name, str) or text[at := _skip(text, at)] != ":":
                return
            start = at + 1
            _, end = _DECODER.raw_decode(text, _skip(text, start))
            at = _skip(text, end)
            members.append((name, text[start:at].removeprefix(" ")))
    except (IndexError, ValueError, RecursionError):
        return
    if _skip(text, at + 1) == len(text):
        yield from members


def _skip(text: str, at: int) -> int:
    """Return the position of the next character that is not white space of JSON."""
    return space.end() if (space := _SPACE.match(text, at)) else at
