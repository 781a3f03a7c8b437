"""The formats of GLM-4.5 and GLM-4.7: keys and values between tags, with line breaks or without."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from hermes_agent.messages import ToolCall
from hermes_agent.parsers.argument_types import value_of
from hermes_agent.parsers.base import Format, Renderer
from hermes_agent.parsers.blocks import Block
from hermes_agent.parsers.nesting import CallTags
from hermes_agent.parsers.rendering import PLAIN, arguments_of, escape_json, plain_name, tool_of
from hermes_agent.parsers.scan import Family, parser
from hermes_agent.parsers.source import SourceText
from hermes_agent.parsers.values import CallBuilder, RenderedPiece, Values

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_FORM = f"{_OPEN}<tool>\n{_KEY}<parameter>{_KEY_END}\n{_VALUE}…{_VALUE_END}\n{_CLOSE}"
_TAGS = CallTags(_OPEN, _CLOSE, _FORM)
_TAG = re.compile(rf"{_KEY}([^<>]*+){_KEY_END}\s*+{_VALUE}")
_NEXT = rf"{_KEY}[^<>]*+{_KEY_END}\s*+{_VALUE}"
_VALUES = Values(
    rf"{_OPEN}\s*+{PLAIN.pattern}\s*+(?={_NEXT})",
    rf"{_VALUE_END}\s*+(?={_NEXT})",
    rf"{_VALUE_END}\s*+(?={_CLOSE})",
    parameter=_TAG,
    close=_VALUE_END,
)
_HEAD = re.compile(rf"\s*+({PLAIN.pattern})\s*+(?:(?={_KEY})|({_CLOSE}))")


def _read(source: SourceText, start: int) -> Block:
    text = source.text
    head = _HEAD.match(text, start)
    if head is None:
        return _TAGS.broken_call(source, start, f"it names no tool, or the name is not followed by {_KEY} or {_CLOSE}")
    call = CallBuilder(head[1])
    if head[2]:
        return Block(head.end(), (call.build(text[start : head.start(2)], _FORM),))
    if _TAG.match(text, head.end()) is None:
        return _TAGS.broken_call(source, start, f"a key is not followed by {_KEY_END} and {_VALUE}")
    values, position = _VALUES.read(source, head.end(), lambda _: False)
    if not values:
        return _VALUES.broken_call(source, _TAGS, start)
    for tag, value in values:
        types = source.tools.types(call.name, tag[1].strip())
        call.add(tag[1].strip(), value_of(value, types, untyped_is_text=False))
    return Block(position + len(_CLOSE), (call.build(text[start:position], _FORM),))


def _render(calls: Sequence[ToolCall], *, line: str) -> str:
    return _VALUES.join(piece for place, call in enumerate(calls) for piece in _render_call(call, line, place))


def _render_call(call: ToolCall, line: str, place: int) -> Iterator[RenderedPiece]:
    yield RenderedPiece(f"{chr(10) if place else ''}{_OPEN}{tool_of(call)}{line}")
    for key, value in arguments_of(call).items():
        yield RenderedPiece(f"{_KEY}{plain_name(key, 'parameter')}{_KEY_END}{line}{_VALUE}")
        yield RenderedPiece(value if isinstance(value, str) else escape_json(value), value_of=key)
        yield RenderedPiece(f"{_VALUE_END}{line}")
    yield RenderedPiece(_CLOSE)


_FAMILY = Family(_FORM, {_OPEN: _read})
_WITH_LINES: Callable[[Sequence[ToolCall]], str] = partial(_render, line="\n")
_COMPACT: Renderer = partial(_render, line="")
GLM45 = Format(parser(_FAMILY), _WITH_LINES)
GLM47 = Format(parser(_FAMILY), _COMPACT)
