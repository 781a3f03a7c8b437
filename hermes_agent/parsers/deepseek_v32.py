"""The format of DeepSeek V3.2, DSML: tags like those of XML, in which each value says whether it is a string."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hermes_agent.messages import ToolCall
from hermes_agent.parsers.base import Format
from hermes_agent.parsers.json_text import Decoded, decode_whole, skip_space
from hermes_agent.parsers.rendering import PLAIN, arguments_of, escaped, plain, tool_of, without
from hermes_agent.parsers.scan import Block, Family, cut_off, parser
from hermes_agent.parsers.thinking import THINK
from hermes_agent.parsers.typed import Toolset, value_of
from hermes_agent.parsers.values import Values, Written

_CALLS, _CALLS_END = "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"
# V4 has the same calls in a section of another name.
_V4_CALLS, _V4_CALLS_END = "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"
_SECTIONS = (_CALLS, _V4_CALLS)
_SECTION_ENDS = (_CALLS_END, _V4_CALLS_END)
_INVOKE, _INVOKE_END = "<｜DSML｜invoke", "</｜DSML｜invoke>"
_PARAMETER, _PARAMETER_END = "<｜DSML｜parameter", "</｜DSML｜parameter>"
_FORM = (
    f'{_CALLS}\n{_INVOKE} name="<tool>">\n{_PARAMETER} name="<parameter>" string="true">…{_PARAMETER_END}\n'
    f"{_INVOKE_END}\n{_CALLS_END}"
)
_STOPS = (_INVOKE_END, _INVOKE, *_SECTION_ENDS, *_SECTIONS, *THINK)
_VALUES = Values(_PARAMETER_END, (_PARAMETER, _INVOKE), _STOPS, _INVOKE_END, _FORM)
_NAME = re.compile(rf'\s*+name="({PLAIN.pattern})"\s*+>')
_ATTRIBUTES = re.compile(rf'\s*+name="({PLAIN.pattern})"(?:\s++string="(true|false)")?\s*+>')


def _read(text: str, start: int, tools: Toolset) -> Block:
    head = _NAME.match(text, start)
    if head is None:
        return _VALUES.ended(text, start, start, "it names no tool")
    call = Written(head[1])
    position = skip_space(text, head.end())
    while text.startswith(_PARAMETER, position):
        attributes = _ATTRIBUTES.match(text, position + len(_PARAMETER))
        if attributes is None:
            return _VALUES.ended(text, start, position + 1, "a parameter has no name")
        end = _VALUES.end(text, attributes.end())
        if end < 0:
            return _VALUES.unclosed(text, start, attributes.end(), attributes[1])
        call.values[attributes[1]] = _value(text[attributes.end() : end], attributes, call.name, tools)
        position = skip_space(text, end + len(_PARAMETER_END))
    return _ended(text, start, position, call, tools)


def _value(text: str, attributes: re.Match[str], name: str, tools: Toolset) -> object:
    if attributes[2] == "true":
        return text
    return value_of(text, tools.types(name, attributes[1]), untyped_is_text=False)


def _ended(text: str, start: int, position: int, call: Written, tools: Toolset) -> Block:
    if text.startswith(_INVOKE_END, position):
        call.values = _unwrapped(call, tools)
        return Block(position + len(_INVOKE_END), (call.found(text[start:position], _FORM),))
    rest = text[position : position + len(_INVOKE_END)]
    if position + len(rest) == len(text) and any(tag.startswith(rest) for tag in (_INVOKE_END, _PARAMETER)):
        return Block(len(text), (cut_off(text[start:], _FORM),), cut=True)
    return _VALUES.ended(text, start, position, f"{_PARAMETER} or {_INVOKE_END} must stand where other text does")


def _unwrapped(call: Written, tools: Toolset) -> dict[str, object]:
    """All arguments as one object, under a name that is none of the tool's, is a habit of these models."""
    known = tools.properties(call.name)
    if len(call.values) != 1 or not (wrapper := {"arguments", "input"} & (call.values.keys() - known.keys())):
        return call.values
    inner = call.values[wrapper.pop()]
    if isinstance(inner, str):
        found = decode_whole(inner)
        inner = found.value if isinstance(found, Decoded) else None
    return inner if known and isinstance(inner, dict) and inner.keys() <= known.keys() else call.values


def render(calls: Sequence[ToolCall]) -> str:
    """Calls in one section, as DeepSeek's own encoding writes them."""
    return f"{_CALLS}\n{chr(10).join(_written(call) for call in calls)}\n{_CALLS_END}" if calls else ""


def _written(call: ToolCall) -> str:
    parameters = "\n".join(_parameter(key, value) for key, value in arguments_of(call).items())
    return f'{_INVOKE} name="{tool_of(call)}">\n{parameters}\n{_INVOKE_END}'


def _parameter(key: str, value: object) -> str:
    is_text = isinstance(value, str)
    tags = (_PARAMETER, _PARAMETER_END, _INVOKE)
    inside = without(value, tags, key) if isinstance(value, str) else escaped(value)
    name = plain(key, "parameter")
    return f'{_PARAMETER} name="{name}" string="{"true" if is_text else "false"}">{inside}{_PARAMETER_END}'


FORMAT = Format(parser(Family(_FORM, {_INVOKE: _read}, _SECTIONS, (*_SECTION_ENDS, _INVOKE_END))), render)
