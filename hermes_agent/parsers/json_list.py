"""A JSON list of calls, read one element at a time so that a broken one does not take the others with it."""

from __future__ import annotations

from hermes_agent.parsers.blocks import Block, ParsedCall, broken_call, cut_call
from hermes_agent.parsers.json_call import broken_bare, call_of
from hermes_agent.parsers.json_scan import StopTags, element_end
from hermes_agent.parsers.json_text import JsonValue, decode, skip_space


class _ListReader:
    """Reads one list."""

    def __init__(self, text: str, start: int, stops: StopTags, form: str) -> None:
        self._text, self._start, self._stops, self._form = text, start, stops, form

    def read(self) -> Block:
        text = self._text
        calls: list[ParsedCall] = []
        end = self._start + 1
        position = skip_space(text, end)
        while position < len(text) and text[position] != "]":
            element = self._element(position)
            calls += element.calls
            end, position = element.end, skip_space(text, element.end)
            if element.cut or text[position : position + 1] not in (",", "]", "{"):
                return Block(end, tuple(calls), element.cut)
            if text[position] == ",":
                end = position + 1
                position = skip_space(text, end)
        if position == len(text):
            return Block(position, (*calls, cut_call(text[end if calls else self._start :], self._form)), cut=True)
        return Block(position + 1, tuple(calls))

    def _element(self, start: int) -> Block:
        decoded = decode(self._text, start)
        if not isinstance(decoded, JsonValue):
            return self._broken(start, decoded.why, at_end=decoded.at_end)
        after = skip_space(self._text, decoded.end)
        if self._text[after : after + 1] in ("", ",", "]", "{") or self._stops.at(self._text, after):
            return Block(decoded.end, (call_of(decoded.value, self._text[start : decoded.end], self._form),))
        return self._broken(start, f"there is text after its JSON object (at character {after - start})")

    def _broken(self, start: int, why: str, *, at_end: bool = False) -> Block:
        """Return a broken element. An unclosed element takes the rest of the text with it."""
        text = self._text
        end = element_end(text, start, len(text))
        if end < 0 and (at_end or self._stops.nearest(text, start) < 0):
            return Block(len(text), (cut_call(text[start:], self._form),), cut=True)
        end = len(text) if end < 0 else end
        return Block(end, (broken_call(text[start:end], why, self._form),) if text[start:end].strip() else ())


def read_list(text: str, start: int, stops: StopTags, form: str) -> Block:
    """Read the list whose bracket opens at `start`. It ends at its closing bracket, before a stop, or with the text."""
    return _ListReader(text, start, stops, form).read()


def read_object(text: str, start: int, stops: StopTags, form: str) -> Block:
    """Read the object whose bracket opens at `start`."""
    decoded = decode(text, start)
    if isinstance(decoded, JsonValue):
        return Block(decoded.end, (call_of(decoded.value, text[start : decoded.end], form),))
    return broken_bare(text, start, decoded.why, stops, form, cut=decoded.at_end)
