"""Arguments that are written one by one between tags: what is read of such a call."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hermes_agent.parsers.json_call import call_with
from hermes_agent.parsers.outside import Stops
from hermes_agent.parsers.scan import Block, Found, broken, cut_off


@dataclass
class Written:
    """A call as far as it was read. `why` is the first thing that was wrong with it."""

    name: str
    values: dict[str, object] = field(default_factory=dict)
    why: str | None = None

    def wrong(self, why: str) -> None:
        """Take note of it; the rest is still read, for the call to end where it does."""
        self.why = self.why or why

    def found(self, text: str, form: str) -> Found:
        """The call, or what is wrong with it."""
        if self.why is not None:
            return broken(text, self.why, form)
        return call_with(self.name, self.values, text, form)


class Values:
    """Finds where values end. A tag of `nested` inside of a value says that it was never closed."""

    def __init__(self, close: str, nested: tuple[str, ...], stops: tuple[str, ...], last: str, form: str) -> None:
        self.close = close
        self._next = re.compile("|".join(re.escape(tag) for tag in (close, *nested)))
        self._stops = Stops(stops)
        self._last, self._form = last, form

    def end(self, text: str, start: int) -> int:
        """Where the closing tag of the value begins that begins here; -1 when the value is not closed."""
        found = self._next.search(text, start)
        return found.start() if found and found.group() == self.close else -1

    def unclosed(self, text: str, begin: int, start: int, parameter: str) -> Block:
        """The call that begins at `begin`, with a value from `start` on that is not closed. What comes after the call
        is kept where the text goes on after the value.
        """
        if self._next.search(text, start) is None and not text.rstrip().endswith(self._last):
            return Block(len(text), (cut_off(text[begin:], self._form),), cut=True)
        return self.ended(text, begin, start, f"the value of {parameter!r} is not closed with {self.close}")

    def ended(self, text: str, begin: int, position: int, why: str) -> Block:
        """A broken call that ends at the next tag that can end one; without any the token limit cut it."""
        end = self._stops.nearest(text, position)
        if end < 0:
            return Block(len(text), (cut_off(text[begin:], self._form),), cut=True)
        found = broken(text[begin:end], why, self._form)
        return Block(end + len(self._last) if text.startswith(self._last, end) else end, (found,))
