"""Arguments that are written one by one between tags, without any escape: where each of them ends.

A value may quote tags, and whole calls. So a closing tag ends a value only where the call goes on after it as a call
must: with another parameter or with its end. Calls nest: what is quoted as a whole call is inside of the value. Where
that leaves a value without an end, or tags without a beginning, it cannot be told what is quoted, and nothing runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hermes_agent.parsers.blocks import Block, ParsedCall, broken_call
from hermes_agent.parsers.json_call import call_with
from hermes_agent.parsers.json_text import skip_space
from hermes_agent.parsers.nesting import CallTags, TagStep, pair
from hermes_agent.parsers.source import SourceText


@dataclass
class CallBuilder:
    """A call as far as it was read. `why` is the first thing that was wrong with it."""

    name: str
    values: dict[str, object] = field(default_factory=dict)
    why: str | None = None

    def add(self, parameter: str, value: object) -> None:
        """Add an argument. One that is there already makes a broken call: it is not clear which value is meant."""
        if parameter in self.values:
            self.add_problem(f"it has the parameter {parameter!r} twice")
        self.values[parameter] = value

    def add_problem(self, why: str) -> None:
        """Take note of it; the rest is still read, for the call to end where it does."""
        self.why = self.why or why

    def build(self, text: str, form: str) -> ParsedCall:
        """The call, or what is wrong with it."""
        if self.why is not None:
            return broken_call(text, self.why, form)
        return call_with(self.name, self.values, text, form)


class Ending(NamedTuple):
    """Where a value may end: before `start`, with the call going on at `end`. `unclosed` is the parameter that begins
    there although the value before has no closing tag.
    """

    start: int
    end: int
    unclosed: str | None = None


class RenderedPiece(NamedTuple):
    """A part of a rendered call; `value_of` names the parameter whose value ends with it."""

    text: str
    value_of: str | None = None


class Value(NamedTuple):
    """One argument as it was written: the match of its opening tag, with the name as group 1, and its text."""

    tag: re.Match[str]
    text: str


class Values:
    """The values of calls of one format.

    `begin`, `go_on` and `end` are patterns of what stands before the first value of a call (its head, up to where the
    first parameter begins), between two values and after the last one (its closing tag, up to where the call ends).
    `parameter` matches the opening tag of a value. `unclosed` is a pattern of a parameter that may begin without a
    closing tag before it, with its name as the group `name`.
    """

    def __init__(
        self, begin: str, go_on: str, end: str, *, parameter: re.Pattern[str], close: str, unclosed: str = ""
    ) -> None:
        names = f"(?P<begin>{begin})|(?P<end>{end})|(?P<go_on>{go_on})"
        self._steps = re.compile(f"{names}|(?P<unclosed>{unclosed})" if unclosed else names)
        self._parameter, self._close = parameter, close

    def read(self, source: SourceText, start: int, may_begin: Callable[[str], bool]) -> tuple[list[Value], int]:
        """Return the values of the call whose first parameter begins at `start`, and where the text goes on after
        them; no values when it cannot be told where they end. `may_begin` says of a name whether such a parameter may
        begin before the last value was closed.
        """
        text, position = source.text, start
        values: list[Value] = []
        tag = self._parameter.match(text, position)
        for ending in source.once(self._calls).get(start, ()):
            if tag is None:
                break
            unclosed = ending.unclosed
            if ending.start < tag.end() or (unclosed is not None and not _is_new(unclosed, tag, values, may_begin)):
                continue
            values.append(Value(tag, text[tag.end() : ending.start]))
            position = skip_space(text, ending.end)
            tag = self._parameter.match(text, position)
        return values, position

    def broken_call(self, source: SourceText, tags: CallTags, begin: int) -> Block:
        """Return the broken call whose opening tag ends at `begin` when its values have no ends: what comes after it
        may be a part of a value.
        """
        why = f"a value ends with {self._close} where the call goes on or ends after it"
        return tags.broken_rest(source, begin, why, cut=True)._replace(begun=True)

    def join(self, pieces: Iterable[RenderedPiece]) -> str:
        """Return the text of these pieces. Raises ValueError when a value would be read as something else."""
        parts = list(pieces)
        text = "".join(part.text for part in parts)
        meant: list[tuple[int, str]] = []
        position = 0
        for part in parts:
            position += len(part.text)
            if part.value_of is not None:
                meant.append((position, part.value_of))
        read = self._outermost(text)
        for place, (end, parameter) in enumerate(meant):
            if place == len(read) or read[place] != end:
                raise ValueError(f"the format cannot carry the value of {parameter!r}: tags in it would end it")
        if len(read) > len(meant):
            raise ValueError(f"the format cannot carry the value of {meant[-1][1]!r}: tags in it would end it")
        return text

    def _calls(self, text: str) -> Mapping[int, Sequence[Ending]]:
        """The endings of each call, by where its first parameter begins, in one go through the text."""
        steps: list[TagStep] = []
        opened: list[list[Ending]] = [[]]
        calls: dict[int, list[Ending]] = {}
        for step in self._steps.finditer(text):
            kind = step.lastgroup
            if kind == "begin":
                opened.append([])
                calls[step.end()] = opened[-1]
            else:
                opened[-1].append(_ending(step))
            steps.append(TagStep(step.end(), 1 if kind == "begin" else -1 if kind == "end" else 0))
            if kind == "end" and len(opened) > 1:
                opened.pop()
        whole = pair(steps)
        return {start: endings for start, endings in calls.items() if start in whole}

    def _outermost(self, text: str) -> list[int]:
        """Where the values end of the calls that stand in no other; all that ends outside of calls too."""
        depth, ends = 0, []
        for step in self._steps.finditer(text):
            if step.lastgroup == "begin":
                depth += 1
                continue
            if depth <= 1:
                ends.append(step.start())
            if step.lastgroup == "end":
                depth -= 1
        return ends


def _is_new(name: str, tag: re.Match[str], values: Sequence[Value], may_begin: Callable[[str], bool]) -> bool:
    return may_begin(name) and name not in (tag[1], *(value.tag[1] for value in values))


def _ending(step: re.Match[str]) -> Ending:
    unclosed = step.lastgroup == "unclosed"
    return Ending(step.start(), step.start() if unclosed else step.end(), step["name"] if unclosed else None)
