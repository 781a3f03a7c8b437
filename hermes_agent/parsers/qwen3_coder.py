"""The format of Qwen3-Coder: <function=f> and in it a <parameter=a> for each argument."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hermes_agent.messages import ToolCall
from hermes_agent.parsers.base import Format
from hermes_agent.parsers.json_text import skip_space
from hermes_agent.parsers.rendering import PLAIN, arguments_of, escaped, plain, tool_of, without
from hermes_agent.parsers.scan import Block, Family, cut_off, parser
from hermes_agent.parsers.thinking import THINK
from hermes_agent.parsers.typed import Toolset, value_of
from hermes_agent.parsers.values import Values, Written

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_FORM = f"{_OPEN}\n{_FUNCTION}<tool>>\n{_PARAMETER}<parameter>>\n…\n{_PARAMETER_END}\n{_FUNCTION_END}\n{_CLOSE}"
_VALUES = Values(_PARAMETER_END, (_FUNCTION,), (_CLOSE, _OPEN, _FUNCTION, *THINK), _CLOSE, _FORM)
_NAME = re.compile(rf"({PLAIN.pattern})>")
_VALUE_STEP = re.compile(
    rf"{re.escape(_PARAMETER_END)}|{re.escape(_FUNCTION)}|\n{re.escape(_PARAMETER)}({PLAIN.pattern})>"
)


def _read(text: str, start: int, tools: Toolset) -> Block:
    begin = skip_space(text, start)
    if text.startswith(_FUNCTION, begin):
        return _read_function(text, begin + len(_FUNCTION), tools)
    if _FUNCTION.startswith(text[begin : begin + len(_FUNCTION)]) and len(text) - begin < len(_FUNCTION):
        return Block(len(text), (cut_off(text[start:], _FORM),), cut=True)
    return _VALUES.ended(text, start, begin, f"no {_FUNCTION} begins here")


def _read_function(text: str, start: int, tools: Toolset) -> Block:
    head = _NAME.match(text, start)
    if head is None:
        return _VALUES.ended(text, start, start, "it names no tool")
    call = Written(head[1])
    position = skip_space(text, head.end())
    while text.startswith(_PARAMETER, position):
        name = _NAME.match(text, position + len(_PARAMETER))
        if name is None:
            return _VALUES.ended(text, start, position + 1, "a parameter has no name")
        end = _value_end(text, name, call, tools)
        if end < 0:
            return _VALUES.unclosed(text, start, name.end(), name[1])
        value = _without_lines(text[name.end() : end])
        call.values[name[1]] = value_of(value, tools.types(call.name, name[1]), untyped_is_text=True)
        position = skip_space(text, end + len(_PARAMETER_END) if text.startswith(_PARAMETER_END, end) else end)
    return _ended(text, start, position, call)


def _value_end(text: str, name: re.Match[str], call: Written, tools: Toolset) -> int:
    """Where the value ends: at its closing tag, or without one where another parameter of the tool begins on a line of
    its own. -1 when a new call begins before that, or the text ends.
    """
    known = tools.properties(call.name)
    for step in _VALUE_STEP.finditer(text, name.end()):
        if step.group() == _PARAMETER_END:
            return step.start()
        if step.group() == _FUNCTION:
            return -1
        if step[1] not in (name[1], *call.values) and (step[1] in known or not known):
            return step.start()
    return -1


def _without_lines(value: str) -> str:
    """The template writes a line break before and after each value."""
    return value.removeprefix("\n").removesuffix("\n")


def _ended(text: str, start: int, position: int, call: Written) -> Block:
    rest = text[position : position + len(_PARAMETER)]
    closed = _FUNCTION_END if text.startswith(_FUNCTION_END, position) else ""
    after = skip_space(text, position + len(closed))
    if text.startswith(_CLOSE, after):
        return Block(after + len(_CLOSE), (call.found(text[start:position], _FORM),))
    if closed:
        # A stop sequence may take the last tag away, or a part of it.
        end = len(text) if _CLOSE.startswith(text[after : after + len(_CLOSE)]) else position + len(closed)
        return Block(end, (call.found(text[start:position], _FORM),))
    if position + len(rest) == len(text) and any(tag.startswith(rest) for tag in (_FUNCTION_END, _PARAMETER)):
        return Block(len(text), (cut_off(text[start:], _FORM),), cut=True)
    return _VALUES.ended(text, start, position, f"{_PARAMETER} or {_FUNCTION_END} must stand where other text does")


def render(calls: Sequence[ToolCall]) -> str:
    """Calls as the chat template writes them."""
    return "\n".join(_written(call) for call in calls)


def _written(call: ToolCall) -> str:
    parameters = "".join(
        f"{_PARAMETER}{plain(key, 'parameter')}>\n{_text(value, key)}\n{_PARAMETER_END}\n"
        for key, value in arguments_of(call).items()
    )
    return f"{_OPEN}\n{_FUNCTION}{tool_of(call)}>\n{parameters}{_FUNCTION_END}\n{_CLOSE}"


def _text(value: object, key: str) -> str:
    tags = (_PARAMETER, _PARAMETER_END, _FUNCTION)
    return without(value, tags, key) if isinstance(value, str) else escaped(value)


FORMAT = Format(parser(Family(_FORM, {_OPEN: _read, _FUNCTION: _read_function}, dropped=(_CLOSE,))), render)
