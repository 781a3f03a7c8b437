"""Arguments that are written one by one between tags, without any escape: finds the end of each.

A value may quote tags, and whole calls. So a closing tag ends a value only if the call continues after it as a call
must: with another parameter or with its end. Calls nest: a call that is quoted as a whole is inside of the value. If
this leaves a value without an end, or tags without a beginning, the quoted part is unknown, and nothing runs.
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
    """A call as far as it was read. `why` is the first fault found in it."""

    name: str
    values: dict[str, object] = field(default_factory=dict)
    why: str | None = None

    def add(self, parameter: str, value: object) -> None:
        """Add an argument. A repeated argument breaks the call, because the intended value is unclear."""
        if parameter in self.values:
            self.add_problem(f"it has the parameter {parameter!r} twice")
        self.values[parameter] = value

    def add_problem(self, why: str) -> None:
        """Record a fault. Reading goes on, so that the call ends in the right place."""
        self.why = self.why or why

    def build(self, text: str, form: str) -> ParsedCall:
        """Return the call, or the broken call with its fault."""
        if self.why is not None:
            return broken_call(text, self.why, form)
        return call_with(self.name, self.values, text, form)


class Ending(NamedTuple):
    """A possible end of a value: before `start`, with the call continuing at `end`. `unclosed` is the parameter that
    begins there although the value before has no closing tag.
    """

    start: int
    end: int
    unclosed: str | None = None


class RenderedPiece(NamedTuple):
    """A part of a rendered call. `value_of` names the parameter whose value ends with it."""

    text: str
    value_of: str | None = None


class Value(NamedTuple):
    """One argument as it was written: the match of its opening tag, with the name as group 1, and its text."""

    tag: re.Match[str]
    text: str


class Values:
    """Reads and joins the values of calls of one format.

    Args:
        begin: Pattern of the text before the first value of a call: its head, up to the first parameter.
        go_on: Pattern of the text between two values.
        end: Pattern of the text after the last value: its closing tag, up to the end of the call.
        parameter: Pattern of the opening tag of a value.
        close: The closing tag of a value.
        unclosed: Pattern of a parameter that may begin without a closing tag before it, with its name as the group
            `name`.
    """

    def __init__(
        self, begin: str, go_on: str, end: str, *, parameter: re.Pattern[str], close: str, unclosed: str = ""
    ) -> None:
        names = f"(?P<begin>{begin})|(?P<end>{end})|(?P<go_on>{go_on})"
        self._steps = re.compile(f"{names}|(?P<unclosed>{unclosed})" if unclosed else names)
        self._parameter, self._close = parameter, close

    def read(self, source: SourceText, start: int, may_begin: Callable[[str], bool]) -> tuple[list[Value], int]:
        """Return the values of the call whose first parameter begins at `start`, and the position after them.

        There are no values if their ends are unknown. `may_begin` returns whether a parameter of a name may begin
        before the last value was closed.
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
        """Return the broken call whose opening tag ends at `begin` and whose values have no ends: the text after it may
        be a part of a value.
        """
        why = f"a value ends with {self._close} where the call goes on or ends after it"
        return tags.broken_rest(source, begin, why, cut=True)._replace(begun=True)

    def join(self, pieces: Iterable[RenderedPiece]) -> str:
        """Return the text of these pieces. Raise ValueError if a value would be read as something else."""
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
        """Return the possible ends of values of each call, by the start of its first parameter, in one pass through the
        text.
        """
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
        """Return the ends of the values in calls that are not inside another call, and all ends outside of calls."""
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
