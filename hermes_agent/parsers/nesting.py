"""Pairs the opening and closing tags of calls, so that a call quoted in another call stays inside it.

A call ends at the closing tag that pairs with its opening tag. If more closing tags follow than opening ones, the end
of the call is unknown: one of those tags may be in a text that the call quotes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate
from math import inf
from typing import NamedTuple

from hermes_agent.parsers.blocks import Block, broken_call, cut_call
from hermes_agent.parsers.json_scan import STRING
from hermes_agent.parsers.source import SourceText


class TagStep(NamedTuple):
    """A tag that changes the nesting depth: its end, and 1 for an opening tag, -1 for a closing one, else 0."""

    end: int
    change: int


def pair(steps: Iterable[TagStep]) -> Mapping[int, int]:
    """Map the end of each opening tag to the end of its closing tag.

    Opening tags without a closing tag are left out, and so are those after which more tags close than open.
    """
    ordered = list(steps)
    depths = list(accumulate(step.change for step in ordered))
    paired: dict[int, int] = {}
    # By depth: the end of the next tag after which the depth is reached. And the lowest depth of the rest.
    next_at: dict[int, int] = {}
    lowest: float = inf
    for step, depth in zip(reversed(ordered), reversed(depths), strict=True):
        if step.change > 0 and lowest == depth - 1:
            paired[step.end] = next_at[depth - 1]
        next_at[depth], lowest = step.end, min(lowest, depth)
    return paired


class _Depths:
    """The nesting depth of a text after each of its tags."""

    def __init__(self, steps: Iterable[TagStep]) -> None:
        ordered = list(steps)
        self._ends = [step.end for step in ordered]
        self._depths = [0, *accumulate(step.change for step in ordered)]
        self._lowest = list(accumulate(reversed(self._depths), min))[::-1]

    def pair_up(self, position: int) -> bool:
        """Return whether every closing tag after this position has an opening one."""
        place = bisect_right(self._ends, position)
        return self._lowest[place] >= self._depths[place]


class CallTags:
    """The tags around the calls of a format. With `strings` the text between them is JSON, and tags in its strings are
    text.
    """

    def __init__(self, opening: str, closing: str, form: str, *, strings: bool = False) -> None:
        self.closing = closing
        self._form = form
        tags = f"(?P<opening>{re.escape(opening)})|(?P<closing>{re.escape(closing)})"
        self._tags = re.compile(tags)
        self._steps = re.compile(rf'{tags}|\\[\\"]?|{STRING}', re.DOTALL) if strings else self._tags

    def end(self, source: SourceText, start: int) -> int:
        """Return the end of the call whose opening tag ends at `start`; -1 if it is unknown."""
        depth = 1
        for step in self._steps.finditer(source.text, start):
            depth += _change(step)
            if depth == 0:
                return step.end() if source.once(self._closings).pair_up(step.end()) else -1
        return -1

    def _closings(self, text: str) -> _Depths:
        return _Depths(TagStep(tag.end(), _change(tag)) for tag in self._tags.finditer(text))

    def broken_call(self, source: SourceText, start: int, why: str, *, cut: bool | None = None) -> Block:
        """Return the broken call whose opening tag ends at `start`.

        Without a closing tag of its own it reaches to the end of the text, because later calls may be a part of it.
        """
        end = self.end(source, start)
        return self.broken_rest(source, start, why, cut=cut) if end < 0 else self._until(source, start, end, why)

    def broken_rest(self, source: SourceText, start: int, why: str, *, cut: bool | None = None) -> Block:
        """Return the broken call that begins at `start` and reaches to the end of the text.

        `cut` means that the text ended within the call (default: if no closing tag follows). A text that ends with a
        closing tag was not cut.
        """
        text = source.text
        if cut is None:
            cut = text.find(self.closing, start) < 0
        if cut and not text.rstrip().endswith(self.closing):
            return Block(len(text), (cut_call(text[start:], self._form),), cut=True)
        return self._until(source, start, len(text), why)

    def _until(self, source: SourceText, start: int, end: int, why: str) -> Block:
        inside = source.text[start:end].rstrip().removesuffix(self.closing)
        return Block(end, (broken_call(inside, why, self._form),))


def _change(tag: re.Match[str]) -> int:
    return {"opening": 1, "closing": -1}.get(tag.lastgroup or "", 0)
