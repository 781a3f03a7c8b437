"""A JSON list of calls, read one element at a time so that a broken one does not take the others with it."""

from __future__ import annotations

from hermes_agent.parsers.blocks import Block, Found, broken, cut_off
from hermes_agent.parsers.json_call import broken_bare, call_of
from hermes_agent.parsers.json_text import Decoded, decode, skip_space
from hermes_agent.parsers.outside import Stops, element_end


class _List:
    """One list."""

    def __init__(self, text: str, start: int, stops: Stops, form: str) -> None:
        self._text, self._start, self._stops, self._form = text, start, stops, form

    def read(self) -> Block:
        text = self._text
        found: list[Found] = []
        end = self._start + 1
        position = skip_space(text, end)
        while position < len(text) and text[position] != "]":
            element = self._element(position)
            found += element.found
            end, position = element.end, skip_space(text, element.end)
            if element.cut or text[position : position + 1] not in (",", "]", "{"):
                return Block(end, tuple(found), element.cut)
            if text[position] == ",":
                end = position + 1
                position = skip_space(text, end)
        if position == len(text):
            return Block(position, (*found, cut_off(text[end if found else self._start :], self._form)), cut=True)
        return Block(position + 1, tuple(found))

    def _element(self, start: int) -> Block:
        found = decode(self._text, start)
        if not isinstance(found, Decoded):
            return self._broken(start, found.why, at_end=found.at_end)
        after = skip_space(self._text, found.end)
        if self._text[after : after + 1] in ("", ",", "]", "{") or self._stops.at(self._text, after):
            return Block(found.end, (call_of(found.value, self._text[start : found.end], self._form),))
        return self._broken(start, f"there is text after its JSON object (at character {after - start})")

    def _broken(self, start: int, why: str, *, at_end: bool = False) -> Block:
        """A broken element. One that is not closed takes the rest of the text with it."""
        text = self._text
        end = element_end(text, start, len(text))
        if end < 0 and (at_end or self._stops.nearest(text, start) < 0):
            return Block(len(text), (cut_off(text[start:], self._form),), cut=True)
        end = len(text) if end < 0 else end
        return Block(end, (broken(text[start:end], why, self._form),) if text[start:end].strip() else ())


def read_list(text: str, start: int, stops: Stops, form: str) -> Block:
    """The list whose bracket opens here. It ends at its closing bracket, before a stop, or where the text does."""
    return _List(text, start, stops, form).read()


def read_object(text: str, start: int, stops: Stops, form: str) -> Block:
    """The object whose bracket opens here."""
    found = decode(text, start)
    if isinstance(found, Decoded):
        return Block(found.end, (call_of(found.value, text[start : found.end], form),))
    return broken_bare(text, start, found.why, stops, form, cut=found.at_end)
