"""The formats of GLM-4.5 and GLM-4.7: keys and values between tags, with line breaks or without."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from hermes_agent.messages import ToolCall
from hermes_agent.parsers.base import Format, Renderer
from hermes_agent.parsers.rendering import PLAIN, arguments_of, escaped, plain, tool_of, without
from hermes_agent.parsers.scan import Block, Family, cut_off, parser
from hermes_agent.parsers.thinking import THINK
from hermes_agent.parsers.typed import Toolset, value_of
from hermes_agent.parsers.values import Values, Written

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_ENDS = (_CLOSE, _OPEN, *THINK)
_FORM = f"{_OPEN}<tool>\n{_KEY}<parameter>{_KEY_END}\n{_VALUE}…{_VALUE_END}\n{_CLOSE}"
_VALUES = Values(_VALUE_END, (_VALUE,), _ENDS, _CLOSE, _FORM)
_TAG = re.compile("|".join(re.escape(tag) for tag in (_KEY, _KEY_END, _VALUE, _VALUE_END, *_ENDS)))
_PAIR = re.compile(rf"([^<>]*+){re.escape(_KEY_END)}\s*+{re.escape(_VALUE)}")


def _read(text: str, start: int, tools: Toolset) -> Block:
    mark = _TAG.search(text, start)
    name = text[start : mark.start()].strip() if mark else ""
    call = Written(name)
    if not PLAIN.fullmatch(name):
        call.wrong("it names no tool")
    while mark is not None and mark.group() == _KEY:
        pair = _PAIR.match(text, mark.end())
        if pair is None:
            return _VALUES.ended(text, start, mark.end(), f"a key is not followed by {_KEY_END} and {_VALUE}")
        key, end = pair[1].strip(), _VALUES.end(text, pair.end())
        if end < 0:
            return _VALUES.unclosed(text, start, pair.end(), key)
        types = tools.types(name, key)
        call.values[key] = value_of(text[pair.end() : end], types, untyped_is_text=False)
        position = end + len(_VALUE_END)
        mark = _TAG.search(text, position)
        if mark and text[position : mark.start()].strip():
            call.wrong("there is text between its arguments")
    return _ended(text, start, mark, call)


def _ended(text: str, start: int, mark: re.Match[str] | None, call: Written) -> Block:
    if mark is None:
        return Block(len(text), (cut_off(text[start:], _FORM),), cut=True)
    if mark.group() not in _ENDS:
        return _VALUES.ended(text, start, mark.end(), f"{mark.group()} stands where {_KEY} or {_CLOSE} must be")
    end = mark.end() if mark.group() == _CLOSE else mark.start()
    return Block(end, (call.found(text[start : mark.start()], _FORM),))


def _render(calls: Sequence[ToolCall], *, line: str) -> str:
    return "\n".join(_written(call, line) for call in calls)


def _written(call: ToolCall, line: str) -> str:
    pairs = "".join(
        f"{_KEY}{plain(key, 'parameter')}{_KEY_END}{line}{_VALUE}{_text(value, key)}{_VALUE_END}{line}"
        for key, value in arguments_of(call).items()
    )
    return f"{_OPEN}{tool_of(call)}{line}{pairs}{_CLOSE}"


def _text(value: object, key: str) -> str:
    return without(value, (_VALUE, _VALUE_END), key) if isinstance(value, str) else escaped(value)


_FAMILY = Family(_FORM, {_OPEN: _read})
_WITH_LINES: Callable[[Sequence[ToolCall]], str] = partial(_render, line="\n")
_COMPACT: Renderer = partial(_render, line="")
GLM45 = Format(parser(_FAMILY), _WITH_LINES)
GLM47 = Format(parser(_FAMILY), _COMPACT)
