"""The format of DeepSeek V3.2, DSML: tags like XML, with an attribute that marks each value as a string or not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hermes_agent.messages import ToolCall
from hermes_agent.parsers.argument_types import Toolset, value_of
from hermes_agent.parsers.base import Format
from hermes_agent.parsers.blocks import Block
from hermes_agent.parsers.json_text import JsonValue, decode_whole, skip_space
from hermes_agent.parsers.nesting import CallTags
from hermes_agent.parsers.rendering import PLAIN, arguments_of, escape_json, plain_name, tool_of
from hermes_agent.parsers.scan import Family, parser
from hermes_agent.parsers.source import SourceText
from hermes_agent.parsers.values import CallBuilder, RenderedPiece, Values

_CALLS, _CALLS_END = "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"
# V4 has the same calls in a section with another name.
_V4_CALLS, _V4_CALLS_END = "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"
_SECTIONS = {_CALLS: _CALLS_END, _V4_CALLS: _V4_CALLS_END}
_INVOKE, _INVOKE_END = "<｜DSML｜invoke", "</｜DSML｜invoke>"
_PARAMETER, _PARAMETER_END = "<｜DSML｜parameter", "</｜DSML｜parameter>"
_FORM = (
    f'{_CALLS}\n{_INVOKE} name="<tool>">\n{_PARAMETER} name="<parameter>" string="true">…{_PARAMETER_END}\n'
    f"{_INVOKE_END}\n{_CALLS_END}"
)
_TAGS = CallTags(_INVOKE, _INVOKE_END, _FORM)
_NAMED = rf'\s*+name="{PLAIN.pattern}"\s*+>'
_NAME = re.compile(rf'\s*+name="({PLAIN.pattern})"\s*+>')
_TAG = re.compile(rf'{_PARAMETER}\s*+name="({PLAIN.pattern})"(?:\s++string="(true|false)")?\s*+>')
_NEXT = rf'{_PARAMETER}\s*+name="{PLAIN.pattern}"(?:\s++string="(?:true|false)")?\s*+>'
_VALUES = Values(
    rf"{_INVOKE}{_NAMED}\s*+(?={_NEXT})",
    rf"{_PARAMETER_END}\s*+(?={_NEXT})",
    rf"{_PARAMETER_END}\s*+(?={_INVOKE_END})",
    parameter=_TAG,
    close=_PARAMETER_END,
)


def _read(source: SourceText, start: int) -> Block:
    text = source.text
    head = _NAME.match(text, start)
    if head is None:
        return _TAGS.broken_call(source, start, "it names no tool")
    call = CallBuilder(head[1])
    position = skip_space(text, head.end())
    if _TAG.match(text, position):
        values, position = _VALUES.read(source, position, lambda _: False)
        if not values:
            return _VALUES.broken_call(source, _TAGS, start)
        for tag, value in values:
            call.add(tag[1], _value(value, tag, call.name, source.tools))
    if text.startswith(_INVOKE_END, position):
        call.values = _unwrap_arguments(call, source.tools)
        return Block(position + len(_INVOKE_END), (call.build(text[start:position], _FORM),))
    return _TAGS.broken_call(source, start, f"{_PARAMETER} or {_INVOKE_END} must come where other text is")


def _value(text: str, attributes: re.Match[str], name: str, tools: Toolset) -> object:
    if attributes[2] == "true":
        return text
    return value_of(text, tools.types(name, attributes[1]), untyped_is_text=False)


def _unwrap_arguments(call: CallBuilder, tools: Toolset) -> dict[str, object]:
    """Return the arguments, unwrapped if the model put them all into one object under a name that the tool lacks."""
    properties = tools.properties(call.name)
    if len(call.values) != 1 or not (wrapper := {"arguments", "input"} & (call.values.keys() - properties.keys())):
        return call.values
    inner = call.values[wrapper.pop()]
    if isinstance(inner, str):
        decoded = decode_whole(inner)
        inner = decoded.value if isinstance(decoded, JsonValue) else None
    return inner if properties and isinstance(inner, dict) and inner.keys() <= properties.keys() else call.values


def render(calls: Sequence[ToolCall]) -> str:
    """Return the calls in one section, as DeepSeek's own encoding writes them."""
    text = _VALUES.join(piece for call in calls for piece in _render_call(call))
    return f"{_CALLS}\n{text}{_CALLS_END}" if calls else ""


def _render_call(call: ToolCall) -> Iterator[RenderedPiece]:
    yield RenderedPiece(f'{_INVOKE} name="{tool_of(call)}">\n')
    arguments = arguments_of(call)
    if not arguments:
        yield RenderedPiece("\n")
    for key, value in arguments.items():
        is_text = "true" if isinstance(value, str) else "false"
        yield RenderedPiece(f'{_PARAMETER} name="{plain_name(key, "parameter")}" string="{is_text}">')
        yield RenderedPiece(value if isinstance(value, str) else escape_json(value), value_of=key)
        yield RenderedPiece(f"{_PARAMETER_END}\n")
    yield RenderedPiece(f"{_INVOKE_END}\n")


FORMAT = Format(
    parser(
        Family(
            _FORM,
            {_INVOKE: _read},
            _SECTIONS,
            (*_SECTIONS.values(), _INVOKE_END),
            others=("<function_results>",),
            only_calls=tuple(_SECTIONS),
        )
    ),
    render,
)
