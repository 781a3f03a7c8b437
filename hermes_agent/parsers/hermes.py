"""The Hermes format: <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>, any number of times, in any text."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from hermes_agent.messages import ToolCall
from hermes_agent.parsers.base import Parsed, call_id

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MARK = re.compile("<think>|</think>|<tool_call>")
_STRING_OR_TAG = re.compile(r'"(?:[^"\\]|\\.)*"|</?tool_call>', re.DOTALL)
# Raw line breaks in strings are what small models write; the meaning is not in doubt.
_DECODER = json.JSONDecoder(strict=False)
_FORM = '{"name": "<tool>", "arguments": {…}}'
_SHORTEST_TAG = len("<tool_")


class _Block(NamedTuple):
    """One <tool_call>: what it asks for or why it is none, and where the text goes on."""

    end: int
    name: str = ""
    arguments: str = ""
    error: str | None = None
    cut: bool = False


def parse(text: str) -> Parsed:
    """Take a text apart; see `Parsed`.

    A call stands only outside of <think>. A malformed block does not affect the others. A text with </think> and no
    <think> before it began inside the thinking, as with chat templates that open it.
    """
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    position, cut, opened = 0, False, False
    while mark := _MARK.search(text, position):
        content.append(text[position : mark.start()])
        position = mark.end()
        if mark.group() == "<think>":
            opened = True
            end = text.find("</think>", position)
            reasoning.append(text[position:] if end < 0 else text[position:end])
            position = len(text) if end < 0 else end + len("</think>")
        elif mark.group() == "</think>":
            if not opened:
                opened, content, calls, reasoning = True, [], [], [text[: mark.start()]]
        else:
            block = _block(text, position)
            calls.append(ToolCall(call_id(len(calls), text), block.name, block.arguments, block.error))
            position, cut = block.end, block.cut
    tail = text[position:]
    begun = _begun_tag(tail)
    if begun:
        calls.append(ToolCall(call_id(len(calls), text), "", begun, _cut_off()))
        tail, cut = tail[: -len(begun)], True
    content.append(tail)
    thought = "\n".join(part.strip() for part in reasoning).strip()
    return Parsed("".join(content).strip() or None, calls, thought or None, cut)


def _block(text: str, start: int) -> _Block:
    position = _skip_space(text, start)
    try:
        value, after = _DECODER.raw_decode(text, position)
    except RecursionError:
        return _broken(text, start, "its JSON is nested too deeply")
    except json.JSONDecodeError as error:
        return _broken(text, start, f"it is not valid JSON ({error.msg} at character {error.pos - position})")
    except ValueError as error:
        return _broken(text, start, f"it is not valid JSON ({error})")
    closed = _skip_space(text, after)
    if text.startswith(_CLOSE, closed):
        end = closed + len(_CLOSE)
    elif closed == len(text) or text.startswith(_OPEN, closed) or _CLOSE.startswith(text[closed:]):
        # A stop sequence takes the closing tag away; the object is whole all the same.
        end = closed if text.startswith(_OPEN, closed) else len(text)
    else:
        return _broken(text, start, f"there is text after its JSON object (at character {closed - position})")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"].strip():
        return _Block(end, "", text[position:after], f"This tool call has no name. Write {_OPEN}{_FORM}{_CLOSE}")
    return _Block(end, value["name"].strip(), _arguments(value.get("arguments")))


def _arguments(value: object) -> str:
    if isinstance(value, str):
        return value
    text = json.dumps({} if value is None else value, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def _broken(text: str, start: int, why: str) -> _Block:
    """A block that is no call. It ends at the first closing tag outside of a JSON string, else at the first one of
    all, else the text was cut inside it.
    """
    for found in _STRING_OR_TAG.finditer(text, start):
        if found.group() in (_OPEN, _CLOSE):
            return _ended(text, start, found.group(), found.start(), why)
    for tag in (_CLOSE, _OPEN):
        end = text.find(tag, start)
        if end >= 0:
            return _ended(text, start, tag, end, why)
    return _Block(len(text), "", text[start:].strip(), _cut_off(), cut=True)


def _ended(text: str, start: int, tag: str, end: int, why: str) -> _Block:
    error = f"This tool call was not understood: {why}. Write {_OPEN}{_FORM}{_CLOSE}"
    return _Block(end + len(tag) if tag == _CLOSE else end, "", text[start:end].strip(), error)


def _cut_off() -> str:
    return f"This tool call was cut off before its end. Write a shorter one: {_OPEN}{_FORM}{_CLOSE}"


def _begun_tag(tail: str) -> str:
    for length in range(len(_OPEN) - 1, _SHORTEST_TAG - 1, -1):
        if tail.endswith(_OPEN[:length]):
            return _OPEN[:length]
    return ""


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position
