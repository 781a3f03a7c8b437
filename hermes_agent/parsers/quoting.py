"""Tracks Markdown code fences and inline code in an answer: calls in them are quoted and do not run."""

from __future__ import annotations

import re
from bisect import bisect_left
from copy import copy

from hermes_agent.parsers.source import SourceText

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})([^`]*)")
_FENCE_LINE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})[^\n`]*$", re.MULTILINE)
_CLOSING_LINE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})[ \t]*$", re.MULTILINE)
_TICKS = re.compile(r"`+")
_LONGEST_LINE = 100
"""The part of a line that is searched for a fence."""

_LONGEST_CODE = 2000
"""The longest reach of inline code, so that no text is searched anew for each of its tags."""


class QuotingState:
    """The state of code fences and inline code while the content of an answer is read part by part."""

    def __init__(self) -> None:
        self.fences = 0
        self._fence = self._line = ""
        self._ticks = self._lines = 0
        self._last_line_closes = False

    def write(self, part: str) -> None:
        """Continue with this part of the content."""
        first, *more = part.split("\n")
        self._add(first)
        for line in more:
            self._end_line()
            self._add(line)

    @property
    def in_fence(self) -> bool:
        """Whether the content has reached the inside of a code fence, closed or not."""
        return bool(self._fence) or _FENCE.fullmatch(self._line) is not None

    @property
    def in_first_fence(self) -> bool:
        """Whether the content so far is only the beginning of a code fence."""
        return bool(self._fence) and self._lines == 1 and not self._line.strip()

    @property
    def ends_with_fence(self) -> bool:
        """Whether the content ends with a code fence, closed or not."""
        line = self._line.strip()
        return bool(self._fence) or (self._last_line_closes and not line)

    def in_code(self, text: str, *after: int) -> bool:
        """Return whether inline code has begun in this line and closes in it after one of these positions."""
        return self._ticks % 2 == 1 and any(_closes_in_line(text, position) for position in after)

    def goes_on(self, source: SourceText, position: int) -> bool:
        """Return whether the current code closes after this position.

        It does if an odd number of fences follows in the rest of the text, or of ticks in the rest of the line. An even
        number is code of its own: fences or ticks that thinking left open are not code.
        """
        text, end = source.text, len(source.text)
        if self.in_fence:
            marks = source.once(_fence_lines)
        elif self._ticks % 2 == 1:
            marks = source.once(_tick_runs)
            farthest = position + _LONGEST_CODE
            line = text.find("\n", position, farthest)
            end = farthest if line < 0 else line
        else:
            return False
        return (bisect_left(marks, end) - bisect_left(marks, position)) % 2 == 1

    def first_outside(self, tags: re.Pattern[str], source: SourceText, start: int) -> re.Match[str] | None:
        """Return the first of these tags from `start` on that no code quotes, if the content continues there."""
        quoting = copy(self)
        for tag in tags.finditer(source.text, start):
            quoting.write(source.text[start : tag.start()])
            if not quoting.goes_on(source, tag.end()):
                return tag
            quoting.write(tag.group())
            start = tag.end()
        return None

    def _add(self, part: str) -> None:
        if len(self._line) < _LONGEST_LINE:
            self._line += part[:_LONGEST_LINE]
        self._ticks += len(_TICKS.findall(part))

    def _end_line(self) -> None:
        fence = _FENCE.fullmatch(self._line)
        blank = not self._line.strip()
        closes = bool(self._fence and fence and fence[1].startswith(self._fence) and not fence[2].strip())
        if closes:
            self._fence = ""
        elif fence and not self._fence:
            self._fence = fence[1]
            self.fences += 1
        if not blank:
            self._last_line_closes = closes
        self._lines += not blank
        self._line, self._ticks = "", 0


def _closes_in_line(text: str, position: int) -> bool:
    tick = text.find("`", position, position + _LONGEST_CODE)
    return tick >= 0 and text.find("\n", position, tick) < 0


def _fence_lines(text: str) -> list[int]:
    return [line.start() for line in _FENCE_LINE.finditer(text)]


def _tick_runs(text: str) -> list[int]:
    return [ticks.start() for ticks in _TICKS.finditer(text)]


def ends_in_fence(text: str, position: int) -> bool:
    """Return whether the text ends with the code fence that contains this position, closed or not."""
    closing = _CLOSING_LINE.search(text, position)
    return closing is None or not text[closing.end() :].strip()


def without_fences(content: str) -> str:
    """Return the content without the lines that begin and end code fences."""
    return _FENCE_LINE.sub("", content)
