"""The format of Qwen3-Coder: <function=f> and in it a <parameter=a> for each argument."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hermes_agent.messages import ToolCall
from hermes_agent.parsers.argument_types import value_of
from hermes_agent.parsers.base import Format
from hermes_agent.parsers.blocks import Block
from hermes_agent.parsers.json_text import skip_space
from hermes_agent.parsers.nesting import CallTags
from hermes_agent.parsers.rendering import PLAIN, arguments_of, escape_json, plain_name, tool_of
from hermes_agent.parsers.scan import Family, parser
from hermes_agent.parsers.source import SourceText
from hermes_agent.parsers.values import CallBuilder, RenderedPiece, Values

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_FORM = f"{_OPEN}\n{_FUNCTION}<tool>>\n{_PARAMETER}<parameter>>\n…\n{_PARAMETER_END}\n{_FUNCTION_END}\n{_CLOSE}"
_NAME = re.compile(rf"({PLAIN.pattern})>")
_TAG = re.compile(rf"{_PARAMETER}({PLAIN.pattern})>")
_NEXT = rf"{_PARAMETER}{PLAIN.pattern}>"
_VALUES = Values(
    rf"{_FUNCTION}{PLAIN.pattern}>\s*+(?={_NEXT})",
    rf"{_PARAMETER_END}\s*+(?={_NEXT})",
    rf"{_PARAMETER_END}\s*+(?={_FUNCTION_END}|{_CLOSE})",
    parameter=_TAG,
    close=_PARAMETER_END,
    unclosed=rf"\n{_PARAMETER}(?P<name>{PLAIN.pattern})>",
)
_CALL_TAGS = CallTags(_OPEN, _CLOSE, _FORM)
_FUNCTION_TAGS = CallTags(_FUNCTION, _FUNCTION_END, _FORM)


def _read(source: SourceText, start: int) -> Block:
    text = source.text
    begin = skip_space(text, start)
    if text.startswith(_FUNCTION, begin):
        return _read_call(source, start, begin + len(_FUNCTION), _CALL_TAGS)
    begun = _FUNCTION.startswith(text[begin : begin + len(_FUNCTION)]) and len(text) - begin < len(_FUNCTION)
    return _CALL_TAGS.broken_call(source, start, f"no {_FUNCTION} begins here", cut=True if begun else None)


def _read_function(source: SourceText, start: int) -> Block:
    return _read_call(source, start, start, _FUNCTION_TAGS)


def _read_call(source: SourceText, start: int, name: int, tags: CallTags) -> Block:
    text = source.text
    head = _NAME.match(text, name)
    if head is None:
        return tags.broken_call(source, start, "it names no tool")
    call = CallBuilder(head[1])
    position = skip_space(text, head.end())
    if _TAG.match(text, position):
        properties = source.tools.properties(call.name)
        values, position = _VALUES.read(source, position, lambda parameter: not properties or parameter in properties)
        if not values:
            return _VALUES.broken_call(source, tags, start)
        for tag, value in values:
            types = source.tools.types(call.name, tag[1])
            call.add(tag[1], value_of(_without_lines(value), types, untyped_is_text=True))
    return _finish_call(source, start, position, call, tags)


def _without_lines(value: str) -> str:
    """Remove the line break that the template writes before and after each value."""
    return value.removeprefix("\n").removesuffix("\n")


def _finish_call(source: SourceText, start: int, position: int, call: CallBuilder, tags: CallTags) -> Block:
    text = source.text
    closed = _FUNCTION_END if text.startswith(_FUNCTION_END, position) else ""
    after = skip_space(text, position + len(closed))
    if text.startswith(_CLOSE, after):
        return Block(after + len(_CLOSE), (call.build(text[start:position], _FORM),))
    if closed:
        # A stop sequence may remove the last tag, or a part of it.
        end = len(text) if _CLOSE.startswith(text[after : after + len(_CLOSE)]) else position + len(closed)
        return Block(end, (call.build(text[start:position], _FORM),))
    return tags.broken_call(source, start, f"{_PARAMETER} or {_FUNCTION_END} must come where other text is")


def render(calls: Sequence[ToolCall]) -> str:
    """Return the calls as the chat template writes them."""
    return _VALUES.join(piece for place, call in enumerate(calls) for piece in _render_call(call, place))


def _render_call(call: ToolCall, place: int) -> Iterator[RenderedPiece]:
    line = "\n" if place else ""
    yield RenderedPiece(f"{line}{_OPEN}\n{_FUNCTION}{tool_of(call)}>\n")
    for key, value in arguments_of(call).items():
        yield RenderedPiece(f"{_PARAMETER}{plain_name(key, 'parameter')}>\n")
        # The line break after a value belongs to its tag.
        yield RenderedPiece(f"{value if isinstance(value, str) else escape_json(value)}\n", value_of=key)
        yield RenderedPiece(f"{_PARAMETER_END}\n")
    yield RenderedPiece(f"{_FUNCTION_END}\n{_CLOSE}")


FORMAT = Format(parser(Family(_FORM, {_OPEN: _read, _FUNCTION: _read_function}, dropped=(_CLOSE,))), render)
