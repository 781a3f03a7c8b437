"""Finds tags outside of JSON strings, and ends of elements and brackets, in text that need not be valid JSON.

A backslash escapes quotes outside of strings too. So the meaning of a quote does not depend on the start of a search,
and of all searches in one text at most two run to its end without a match.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

STRING = r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'
_TOKEN = re.compile(rf'\\[\\"]?|{STRING}|[\[{{]|[\]}}]|,', re.DOTALL)


class StopTags:
    """Tags that end a block."""

    def __init__(self, tags: Sequence[str]) -> None:
        any_tag = "|".join(re.escape(tag) for tag in tags)
        firsts = re.escape("".join(sorted({tag[0] for tag in tags})))
        self._any = re.compile(any_tag)
        self._before = re.compile(
            rf'(?:[^"\\{firsts}]++|\\[\\"]?|{STRING}|(?!{any_tag})[{firsts}])*+',
            re.DOTALL,
        )

    def outside(self, text: str, start: int) -> int:
        """Return the position of the first tag outside of strings, or the end of the text."""
        match = self._before.match(text, start)
        return match.end() if match else start

    def nearest(self, text: str, start: int) -> int:
        """Return the position of the first tag, inside of strings too; -1 if there is none."""
        match = self._any.search(text, start)
        return match.start() if match else -1

    def at(self, text: str, position: int) -> bool:
        """Return whether one of the tags begins at this position."""
        return self._any.match(text, position) is not None


def element_end(text: str, start: int, end: int) -> int:
    """Return the end of the list element that begins at `start`: before the comma or bracket after it, at most `end`;
    -1 if neither comes.
    """
    depth = 0
    for token in _TOKEN.finditer(text, start, end):
        if token.group() in "[{":
            depth += 1
        elif depth == 0 and token.group() in ",]}":
            return token.start()
        elif token.group() in "]}":
            depth -= 1
    return -1


def bracket_end(text: str, start: int, end: int) -> int:
    """Return the position after the bracket that closes the one at `start`, at most `end`; -1 if it is not closed."""
    depth = 0
    for token in _TOKEN.finditer(text, start, end):
        if token.group() in "[{":
            depth += 1
        elif token.group() in "]}":
            depth -= 1
            if depth <= 0:
                return token.end()
    return -1
