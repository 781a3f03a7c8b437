"""Calls that are JSON with little or nothing around them: the formats of Llama, and bare JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hermes_agent.messages import ToolCall
from hermes_agent.parsers.argument_types import Toolset
from hermes_agent.parsers.base import Format
from hermes_agent.parsers.blocks import Block, ParsedCall
from hermes_agent.parsers.json_call import broken_bare
from hermes_agent.parsers.json_list import read_list, read_object
from hermes_agent.parsers.json_scan import StopTags
from hermes_agent.parsers.json_text import JsonValue, decode, skip_space
from hermes_agent.parsers.rendering import object_with
from hermes_agent.parsers.scan import Family, parser
from hermes_agent.parsers.source import SourceText
from hermes_agent.parsers.thinking import THINK

_TAG = "<|python_tag|>"
_LLAMA_FORM = f'{_TAG}{{"name": "<tool>", "parameters": {{…}}}}'
_LLAMA_STOPS = StopTags((_TAG, *THINK))
_ENDS_OF_TURN = ("<|eom_id|>", "<|eot_id|>")

_FENCE = "```"
_FENCE_HEAD = re.compile(r"(?:json|tool_call)?[ \t]*+(?:\r?\n)?\s*+")
_JSON_FORM = '{"name": "<tool>", "arguments": {…}}'
_JSON_STOPS = StopTags((_FENCE, *THINK))

_BEGUN = re.compile(
    r'\{\s*+(?:"type"\s*+:\s*+"function"\s*+,\s*+)?'
    r'"(?:name"\s*+:\s*+(?:"((?:[^"\\]++|\\.)*+)")?|(?:arguments|parameters)"\s*+:)'
)
_LINE = re.compile(r"^[ \t]*+\[?+", re.MULTILINE)
_BETWEEN = re.compile(r"\s*+(?:;\s*+)?")


def _is_call(value: object, tools: Toolset) -> bool:
    """Return whether an object is meant as a call: prose and answers contain JSON too."""
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str):
        return False
    return ("arguments" in value or "parameters" in value) and bool(name.strip()) and tools.may_call(name.strip())


def _begins_call(text: str, start: int, tools: Toolset) -> bool:
    """Return whether an object that cannot be decoded is meant as a call, by its first keys."""
    match = _BEGUN.match(text, start)
    return match is not None and (match[1] is None or tools.may_call(match[1]))


def _object(text: str, start: int, stops: StopTags, form: str, tools: Toolset) -> Block | None:
    if not text.startswith("{", start):
        return None
    decoded = decode(text, start)
    is_call = _is_call(decoded.value, tools) if isinstance(decoded, JsonValue) else _begins_call(text, start, tools)
    return read_object(text, start, stops, form) if is_call else None


def _sequence(text: str, start: int, stops: StopTags, form: str, tools: Toolset) -> Block | None:
    """Read calls one after the other, with a semicolon or white space between them."""
    calls: list[ParsedCall] = []
    block, position = _object(text, start, stops, form, tools), start
    cut = False
    while block is not None:
        calls += block.calls
        position, cut = block.end, block.cut
        between = _BETWEEN.match(text, position)
        block = _object(text, between.end() if between else position, stops, form, tools)
    return Block(position, tuple(calls), cut) if calls else None


def _llama_start(source: SourceText, start: int) -> Block | None:
    return _sequence(source.text, start, _LLAMA_STOPS, _LLAMA_FORM, source.tools)


def _llama_tagged(source: SourceText, start: int) -> Block:
    """Read the call that must follow the tag, whether or not the tool exists."""
    text = source.text
    begin = skip_space(text, start)
    if text.startswith("{", begin):
        block = read_object(text, begin, _LLAMA_STOPS, _LLAMA_FORM)
        between = _BETWEEN.match(text, block.end)
        more = _sequence(text, between.end(), _LLAMA_STOPS, _LLAMA_FORM, Toolset(())) if between else None
        return Block(more.end, block.calls + more.calls, more.cut) if more else block
    return broken_bare(text, start, "no JSON object begins here", _LLAMA_STOPS, _LLAMA_FORM, cut=begin == len(text))


def _begins_line(source: SourceText, start: int) -> bool:
    """Return whether a line from `start` on begins with a call, whatever precedes it."""
    return any(_begins_call(source.text, line.end(), source.tools) for line in _LINE.finditer(source.text, start))


def _list(text: str, start: int, tools: Toolset) -> Block | None:
    """Read a list whose first object is a call."""
    first = skip_space(text, start + 1)
    if _object(text, first, _JSON_STOPS, _JSON_FORM, tools) is None:
        return None
    return read_list(text, start, _JSON_STOPS, _JSON_FORM)


def _json_start(source: SourceText, start: int) -> Block | None:
    if source.text.startswith("[", start):
        return _list(source.text, start, source.tools)
    return _sequence(source.text, start, _JSON_STOPS, _JSON_FORM, source.tools)


def _json_fenced(source: SourceText, start: int) -> Block:
    """Read a code fence that contains only calls. Any other fence is text, up to its end."""
    text = source.text
    head = _FENCE_HEAD.match(text, start)
    block = _json_start(source, head.end() if head else start)
    if block is not None:
        after = skip_space(text, block.end)
        closed = text.startswith(_FENCE, after)
        return block._replace(end=after + len(_FENCE) if closed else block.end)
    closing = text.find(_FENCE, start)
    return Block(len(text) if closing < 0 else closing + len(_FENCE))


def _render_llama(calls: Sequence[ToolCall]) -> str:
    return _TAG + "; ".join(object_with(call, "parameters") for call in calls) if calls else ""


def _render_json(calls: Sequence[ToolCall]) -> str:
    objects = [object_with(call, "arguments") for call in calls]
    return f"[{', '.join(objects)}]" if len(objects) > 1 else "".join(objects)


LLAMA = Format(
    parser(
        Family(
            _LLAMA_FORM,
            {_TAG: _llama_tagged},
            dropped=_ENDS_OF_TURN,
            start=_llama_start,
            begins_line=_begins_line,
            only_calls=(_TAG,),
        )
    ),
    _render_llama,
)
JSON = Format(
    parser(Family(_JSON_FORM, {_FENCE: _json_fenced}, start=_json_start, begins_line=_begins_line, fences=True)),
    _render_json,
)
