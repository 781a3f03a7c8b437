"""The formats of Mistral: a list of objects after [TOOL_CALLS], or from version 11 on a name and its arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hermes_agent.messages import ToolCall
from hermes_agent.parsers.base import Format, valid_id
from hermes_agent.parsers.blocks import Block, cut_call
from hermes_agent.parsers.json_call import broken_bare, call_with, read_bare
from hermes_agent.parsers.json_list import read_list, read_object
from hermes_agent.parsers.json_scan import StopTags
from hermes_agent.parsers.json_text import skip_space
from hermes_agent.parsers.rendering import PLAIN, arguments_of, json_of, tool_of
from hermes_agent.parsers.scan import Family, parser
from hermes_agent.parsers.source import SourceText
from hermes_agent.parsers.thinking import BRACKETS, THINK

_CALLS, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_FORM = f"{_CALLS}<tool>{_ARGUMENTS}{{…}}"
_THINKING = (THINK, BRACKETS)
_OTHERS = (_CALLS, *THINK, *BRACKETS)
_STOPS = StopTags(_OTHERS)
_HEAD = re.compile(rf"({PLAIN.pattern})\s*+(?:\[CALL_ID\]\s*+([A-Za-z0-9]*+)\s*+)?(?:\[ARGS\])?\s*+")


def _read(source: SourceText, start: int) -> Block:
    text = source.text
    begin = skip_space(text, start)
    if text.startswith("{", begin):
        return read_object(text, begin, _STOPS, _FORM)
    if text.startswith("[", begin) and not text.startswith((*_OTHERS, _ID, _ARGUMENTS), begin):
        return read_list(text, begin, _STOPS, _FORM)
    head = _HEAD.match(text, begin)
    if begin == len(text) or (head and _cut_after(text, head.end())):
        return Block(len(text), (cut_call(text[start:], _FORM),), cut=True)
    if head is None:
        return broken_bare(text, start, "it names no tool", _STOPS, _FORM)
    body = read_bare(text, begin, head.end(), _STOPS, _FORM)
    return body.block(call_with(head[1], body.value, text[begin : body.end], _FORM)._replace(id=valid_id(head[2])))


def _cut_after(text: str, position: int) -> bool:
    rest = text[position : position + len(_ID)]
    return position + len(rest) == len(text) and (_ID.startswith(rest) or _ARGUMENTS.startswith(rest))


def _render_call(call: ToolCall) -> str:
    identity = f"{_ID}{call.id}" if valid_id(call.id) else ""
    return f"{_CALLS}{tool_of(call)}{identity}{_ARGUMENTS}{json_of(arguments_of(call))}"


def render(calls: Sequence[ToolCall]) -> str:
    """Return the calls in the form of version 11 and later. An id of nine letters and digits is included."""
    return "".join(_render_call(call) for call in calls)


FORMAT = Format(parser(Family(_FORM, {_CALLS: _read}, thinking=_THINKING, only_calls=(_CALLS,))), render)
