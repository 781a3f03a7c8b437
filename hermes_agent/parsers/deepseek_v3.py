"""The formats of DeepSeek V3 (a type, a name and a code fence) and V3.1 (a name and JSON)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from hermes_agent.messages import ToolCall
from hermes_agent.parsers.base import Format
from hermes_agent.parsers.headed_calls import Head, HeadAt, HeadedFormat
from hermes_agent.parsers.rendering import PLAIN, arguments_of, json_of, tool_of
from hermes_agent.parsers.scan import Family, parser
from hermes_agent.parsers.source import SourceText

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_NAME = re.compile(rf"\s*+({PLAIN.pattern})\s*+")


def _after_type(source: SourceText, _start: int, _separator: int, end: int) -> Head | None:
    match = _NAME.match(source.text, end)
    return Head(match[1], match.end()) if match else None


def _before_separator(source: SourceText, start: int, separator: int, end: int) -> Head | None:
    name = source.text[start:separator].strip()
    return Head(name, end) if PLAIN.fullmatch(name) else None


def _format(head: HeadAt, form: str, write: Callable[[ToolCall], str]) -> Format:
    read = HeadedFormat(_CALL, _SEPARATOR, _CALL_END, (_CALLS, _CALLS_END), head, form).reader()

    def render(calls: Sequence[ToolCall]) -> str:
        return f"{_CALLS}{''.join(write(call) for call in calls)}{_CALLS_END}" if calls else ""

    family = Family(form, {_CALL: read}, {_CALLS: _CALLS_END}, (_CALLS_END, _CALL_END), only_calls=(_CALLS, _CALL))
    return Format(parser(family), render)


def _with_type(call: ToolCall) -> str:
    return f"{_CALL}function{_SEPARATOR}{tool_of(call)}\n```json\n{json_of(arguments_of(call))}\n```{_CALL_END}"


def _without_type(call: ToolCall) -> str:
    return f"{_CALL}{tool_of(call)}{_SEPARATOR}{json_of(arguments_of(call))}{_CALL_END}"


V3 = _format(
    _after_type,
    f"{_CALLS}{_CALL}function{_SEPARATOR}<tool>\n```json\n{{…}}\n```{_CALL_END}{_CALLS_END}",
    _with_type,
)
V3_1 = _format(
    _before_separator,
    f"{_CALLS}{_CALL}<tool>{_SEPARATOR}{{…}}{_CALL_END}{_CALLS_END}",
    _without_type,
)
