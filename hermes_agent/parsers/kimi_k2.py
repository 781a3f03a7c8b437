"""The format of Kimi K2, in which a call has the id functions.<tool>:<number>."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hermes_agent.messages import ToolCall
from hermes_agent.parsers.base import Format
from hermes_agent.parsers.headed_calls import Head, HeadedFormat
from hermes_agent.parsers.rendering import PLAIN, arguments_of, json_of, tool_of
from hermes_agent.parsers.scan import Family, parser
from hermes_agent.parsers.source import SourceText

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
# The models write it in the singular too.
_SECTIONS = {_SECTION: _SECTION_END, "<|tool_call_section_begin|>": "<|tool_call_section_end|>"}
_CALL, _CALL_END, _ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"
_FORM = f"{_SECTION}{_CALL}functions.<tool>:0{_ARGUMENTS}{{…}}{_CALL_END}{_SECTION_END}"
_ID = re.compile(rf"(?:functions\.)?+({PLAIN.pattern}):[0-9]+")


def _head(source: SourceText, start: int, separator: int, end: int) -> Head | None:
    """Read the id, or without a number the name alone if there is such a tool."""
    identity = source.text[start:separator].strip()
    if match := _ID.fullmatch(identity):
        return Head(match[1], end, identity)
    name = identity.removeprefix("functions.")
    return Head(name, end) if PLAIN.fullmatch(name) and source.tools.may_call(name) else None


def _id(call: ToolCall, place: int) -> str:
    match = _ID.fullmatch(call.id)
    return call.id if match and match[1] == call.name else f"functions.{tool_of(call)}:{place}"


def render(calls: Sequence[ToolCall]) -> str:
    """Return the calls in one section. An id of another format is replaced by the id that the model would write."""
    text = "".join(
        f"{_CALL}{_id(call, place)}{_ARGUMENTS}{json_of(arguments_of(call))}{_CALL_END}"
        for place, call in enumerate(calls)
    )
    return f"{_SECTION}{text}{_SECTION_END}" if calls else ""


_READ = HeadedFormat(_CALL, _ARGUMENTS, _CALL_END, (*_SECTIONS, *_SECTIONS.values()), _head, _FORM).reader()
FORMAT = Format(
    parser(
        Family(_FORM, {_CALL: _READ}, _SECTIONS, (*_SECTIONS.values(), _CALL_END), only_calls=(*_SECTIONS, _CALL)),
    ),
    render,
)
