"""Calls that are JSON: an object with name and arguments, or the arguments alone."""

from __future__ import annotations

import re
from typing import NamedTuple

from hermes_agent.parsers.base import good_id
from hermes_agent.parsers.json_text import Decoded, can_be_sent, decode, decode_whole, dump, skip_space
from hermes_agent.parsers.outside import Stops
from hermes_agent.parsers.scan import Block, Found, broken, cut_off

_FENCE_END = "```"
_FENCE = re.compile(r"```(?:json)?\s*+")


class Body(NamedTuple):
    """A JSON value between tags: what was decoded, or `why` it is none; the text that it was, and where that ends."""

    end: int
    text: str
    value: object = None
    why: str | None = None
    cut: bool = False

    def block(self, found: Found, form: str) -> Block:
        """The block of this one call; `found` when the value could be decoded."""
        if self.cut:
            return Block(self.end, (cut_off(self.text, form),), cut=True)
        return Block(self.end, (found if self.why is None else broken(self.text, self.why, form),))


class Bodies:
    """Reads JSON values that end with the tag `close` (None: where the JSON ends) or before one of `others`."""

    def __init__(self, close: str | None, others: tuple[str, ...]) -> None:
        self._close = close
        self._others = others
        self._stops = Stops((close, *others) if close else others)

    def read(self, text: str, start: int) -> Body:
        """The value that begins here, in a json code fence or not. A broken one ends at the next tag outside of
        strings, so that the calls after it are not lost.
        """
        begin = skip_space(text, start)
        if fence := _FENCE.match(text, begin):
            begin = fence.end()
        found = decode(text, begin)
        if not isinstance(found, Decoded):
            return self.failed(text, start, found.why, at_end=found.at_end)
        after = skip_space(text, found.end)
        if fence and _FENCE_END.startswith(closing := text[after : after + len(_FENCE_END)]):
            after = skip_space(text, after + len(closing))
        end = self._closed(text, after)
        if end < 0:
            failed = self.failed(text, start, f"there is text after its JSON object (at character {after - begin})")
            return failed._replace(cut=False)
        return Body(end, text[begin : found.end], found.value)

    def _closed(self, text: str, after: int) -> int:
        """Where a value is over that ends here; -1 when there is other text."""
        if self._close is None or text.startswith(self._others, after):
            return after
        if text.startswith(self._close, after):
            return after + len(self._close)
        # A stop sequence takes the closing tag away; the object is whole all the same.
        return len(text) if self._close.startswith(text[after : after + len(self._close)]) else -1

    def failed(self, text: str, start: int, why: str, *, at_end: bool = False) -> Body:
        """What begins here and cannot be read."""
        end = self._stops.outside(text, start)
        if end == len(text) and not (at_end and not self._ends_closed(text)):
            end = self._stops.nearest(text, start)
        if end < 0 and self._close is None and not at_end:
            return Body(len(text), text[start:], why=why)
        if end in (-1, len(text)):
            return Body(len(text), text[start:], why=why, cut=True)
        closed = self._close is not None and text.startswith(self._close, end)
        return Body(end + len(self._close or "") if closed else end, text[start:end], why=why)

    def _ends_closed(self, text: str) -> bool:
        return self._close is not None and text.rstrip().endswith(self._close)


def is_empty(text: str, start: int, close: str) -> bool:
    """Whether nothing stands before the closing tag."""
    return text.startswith(close, skip_space(text, start))


def call_of(value: object, text: str, form: str) -> Found:
    """The call that an object with `name` and `arguments` (or `parameters`) stands for."""
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str) or not name.strip():
        return Found("", text, "", f"This tool call has no name. Write {form}")
    given = value.get("arguments") if "arguments" in value else value.get("parameters")
    return call_with(name.strip(), given, text, form)._replace(id=good_id(value.get("id")))


def call_with(name: str, given: object, text: str, form: str) -> Found:
    """A call of this name. Arguments that were encoded twice stay the text that they are."""
    try:
        arguments = _arguments(given)
    except RecursionError:
        return broken(text, "its JSON is nested too deeply", form)
    if arguments is None:
        return broken(text, "its arguments are no JSON object", form)
    return Found(name, arguments)


def _arguments(given: object) -> str | None:
    if given is None or (isinstance(given, str) and not given.strip()):
        return "{}"
    if isinstance(given, dict):
        return dump(given)
    inner = decode_whole(given) if isinstance(given, str) else None
    if not isinstance(inner, Decoded) or not isinstance(inner.value, dict):
        return None
    return given if isinstance(given, str) and can_be_sent(given) else dump(inner.value)
