"""The formats of Mistral: a list of objects after [TOOL_CALLS], or from version 11 on a name and its arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hermes_agent.messages import ToolCall
from hermes_agent.parsers.base import Format, good_id
from hermes_agent.parsers.json_call import Bodies, call_with
from hermes_agent.parsers.json_list import read_list, read_object
from hermes_agent.parsers.json_text import skip_space
from hermes_agent.parsers.outside import Stops
from hermes_agent.parsers.rendering import PLAIN, arguments_of, json_of, tool_of
from hermes_agent.parsers.scan import Block, Family, cut_off, parser
from hermes_agent.parsers.thinking import BRACKETS, THINK
from hermes_agent.parsers.typed import Toolset

_CALLS, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_FORM = f"{_CALLS}<tool>{_ARGUMENTS}{{…}}"
_THINKING = (THINK, BRACKETS)
_OTHERS = (_CALLS, *THINK, *BRACKETS)
_STOPS = Stops(_OTHERS)
_BODIES = Bodies(None, _OTHERS)
_HEAD = re.compile(rf"({PLAIN.pattern})\s*+(?:\[CALL_ID\]\s*+([A-Za-z0-9]*+)\s*+)?(?:\[ARGS\])?\s*+")


def _read(text: str, start: int, _tools: Toolset) -> Block:
    begin = skip_space(text, start)
    if text.startswith("{", begin):
        return read_object(text, begin, _STOPS, _FORM)
    if text.startswith("[", begin) and not text.startswith((*_OTHERS, _ID, _ARGUMENTS), begin):
        return read_list(text, begin, _STOPS, _FORM)
    head = _HEAD.match(text, begin)
    if begin == len(text) or (head and _cut_after(text, head.end())):
        return Block(len(text), (cut_off(text[start:], _FORM),), cut=True)
    if head is None:
        return _BODIES.failed(text, start, "it names no tool").block(call_with("", {}, "", _FORM), _FORM)
    body = _BODIES.read(text, head.end())
    whole = text[begin : body.end]
    found = call_with(head[1], body.value, whole, _FORM)._replace(id=good_id(head[2]))
    return body._replace(text=whole).block(found, _FORM)


def _cut_after(text: str, position: int) -> bool:
    rest = text[position : position + len(_ID)]
    return position + len(rest) == len(text) and (_ID.startswith(rest) or _ARGUMENTS.startswith(rest))


def _written(call: ToolCall) -> str:
    identity = f"{_ID}{call.id}" if good_id(call.id) else ""
    return f"{_CALLS}{tool_of(call)}{identity}{_ARGUMENTS}{json_of(arguments_of(call))}"


def render(calls: Sequence[ToolCall]) -> str:
    """Calls in the form of version 11 and later, with the id where it is one of nine letters and digits."""
    return "".join(_written(call) for call in calls)


FORMAT = Format(parser(Family(_FORM, {_CALLS: _read}, thinking=_THINKING)), render)
