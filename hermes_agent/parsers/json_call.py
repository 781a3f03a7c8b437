"""Calls that are JSON: an object with name and arguments, or the arguments alone."""

from __future__ import annotations

import re
from typing import NamedTuple

from hermes_agent.parsers.base import valid_id
from hermes_agent.parsers.blocks import Block, ParsedCall, broken_call, cut_call
from hermes_agent.parsers.json_scan import StopTags, bracket_end
from hermes_agent.parsers.json_text import JsonProblem, JsonValue, can_be_sent, decode, decode_whole, dump, skip_space
from hermes_agent.parsers.nesting import CallTags
from hermes_agent.parsers.source import SourceText

_FENCE_END = "```"
_FENCE = re.compile(r"```(?:json)?\s*+")
_GOES_ON = re.compile(r"\s*+(?:\Z|;|```|<\|)")
_ARGUMENTS = frozenset({"arguments", "parameters"})
_OUTER = _ARGUMENTS | {"name", "id", "type"}


class Body(NamedTuple):
    """The JSON value that begins a block. `broken` is the block of a broken call if there is no value."""

    end: int
    text: str
    value: object = None
    broken: Block | None = None

    def block(self, call: ParsedCall) -> Block:
        """Return the block with the call that the value stands for."""
        return self.broken or Block(self.end, (call,))


class Bodies:
    """Reads JSON values that end with the closing tag of `tags`, or before one of `others`."""

    def __init__(self, tags: CallTags, others: tuple[str, ...]) -> None:
        self._tags, self._others = tags, others

    def read(self, source: SourceText, start: int, begin: int) -> Body:
        """Return the value that begins at `begin`, in a JSON code fence or not, of the call whose opening tag ends at
        `start`.
        """
        text = source.text
        begin, fenced = _after_fence(text, begin)
        decoded = decode(text, begin)
        if not isinstance(decoded, JsonValue):
            cut = True if decoded.at_end else None
            return Body(begin, "", broken=self._tags.broken_call(source, start, decoded.why, cut=cut))
        after = skip_space(text, decoded.end)
        if fenced:
            after = _after_fence_end(text, after)
        end = self._find_end(text, after)
        if end < 0:
            why = f"there is text after its JSON object (at character {after - begin})"
            return Body(begin, "", broken=self._tags.broken_call(source, start, why, cut=False))
        return Body(end, text[begin : decoded.end], decoded.value)

    def _find_end(self, text: str, after: int) -> int:
        """Return the end of a block whose value ends at `after`; -1 if other text follows."""
        if text.startswith(self._others, after):
            return after
        close = self._tags.closing
        if text.startswith(close, after):
            return after + len(close)
        # A stop sequence removes the closing tag, but the object is complete.
        return len(text) if close.startswith(text[after : after + len(close)]) else -1


def read_bare(text: str, start: int, begin: int, stops: StopTags, form: str) -> Body:
    """Return the object that begins at `begin`, of a call that begins at `start` and has no closing tag.

    The call ends with the object. An object that was encoded twice is a text.
    """
    first, fenced = _after_fence(text, begin)
    decoded = decode(text, first)
    if not isinstance(decoded, JsonValue):
        if not (decoded.at_end or text.startswith("{", first) or stops.at(text, first)):
            return Body(first, "", broken=Block(len(text), (broken_call(text[start:], decoded.why, form),)))
        return Body(first, "", broken=broken_bare(text, start, decoded.why, stops, form, cut=decoded.at_end))
    after = _after_fence_end(text, skip_space(text, decoded.end)) if fenced else decoded.end
    if not isinstance(decoded.value, dict) and not _goes_on(text, after, stops):
        why = "its arguments are not a JSON object"
        return Body(first, "", broken=Block(len(text), (broken_call(text[start:], why, form),)))
    return Body(after, text[first : decoded.end], decoded.value)


def broken_bare(text: str, start: int, why: str, stops: StopTags, form: str, *, cut: bool = False) -> Block:
    """Return a broken call without a closing tag.

    It ends at its closing bracket if the text continues there as it does after a call; otherwise all the rest is a part
    of it. `cut` means that the text certainly ended within it.
    """
    stop = stops.nearest(text, start)
    limit = len(text) if stop < 0 else stop
    brace = text.find("{", start, limit)
    closed = limit if brace < 0 else bracket_end(text, brace, len(text))
    if (closed < 0 and stop < 0) or (cut and closed in (-1, len(text))):
        return Block(len(text), (cut_call(text[start:], form),), cut=True)
    end = closed if closed >= 0 and (closed == limit or _goes_on(text, closed, stops)) else len(text)
    return Block(end, (broken_call(text[start:end], why, form),))


def _goes_on(text: str, position: int, stops: StopTags) -> bool:
    return _GOES_ON.match(text, position) is not None or stops.at(text, skip_space(text, position))


def _after_fence(text: str, position: int) -> tuple[int, bool]:
    begin = skip_space(text, position)
    fence = _FENCE.match(text, begin)
    return (fence.end(), True) if fence else (begin, False)


def _after_fence_end(text: str, position: int) -> int:
    closing = text[position : position + len(_FENCE_END)]
    return skip_space(text, position + len(closing)) if _FENCE_END.startswith(closing) else position


def is_empty(text: str, start: int, close: str) -> bool:
    """Return whether the closing tag follows directly."""
    return text.startswith(close, skip_space(text, start))


def call_of(value: object, text: str, form: str) -> ParsedCall:
    """Return the call that an object with `name` and `arguments` (or `parameters`) stands for."""
    if isinstance(value, list):
        return broken_call(text, "it is a list; each call has a block of its own", form)
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str) or not name.strip():
        return ParsedCall("", text, "", f"This tool call has no name. Write {form}")
    keys = _ARGUMENTS & value.keys()
    if len(keys) > 1:
        return broken_call(text, 'it has both "arguments" and "parameters"', form)
    other = next((key for key in value if key not in _OUTER), None)
    if other is not None:
        why = f"{other!r} is beside the name" if keys else f'"arguments" is missing; put {other!r} into it'
        return broken_call(text, why, form)
    arguments = value[next(iter(keys))] if keys else None
    return call_with(name.strip(), arguments, text, form)._replace(id=valid_id(value.get("id")))


def call_with(name: str, arguments: object, text: str, form: str) -> ParsedCall:
    """Return a call of this name. Arguments that were encoded twice stay the text that they are."""
    try:
        return _call_with(name, arguments, text, form)
    except RecursionError:
        return broken_call(text, "its JSON is nested too deeply", form)


def _call_with(name: str, arguments: object, text: str, form: str) -> ParsedCall:
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return ParsedCall(name, "{}")
    if isinstance(arguments, dict):
        return ParsedCall(name, dump(arguments))
    inner = decode_whole(arguments) if isinstance(arguments, str) else None
    if not isinstance(inner, JsonValue) or not isinstance(inner.value, dict):
        why = f": {inner.why}" if isinstance(inner, JsonProblem) else ""
        return broken_call(text, f"its arguments are not a JSON object{why}", form)
    return ParsedCall(name, arguments if isinstance(arguments, str) and can_be_sent(arguments) else dump(inner.value))
