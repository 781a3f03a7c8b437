"""Finds tags that stand outside of JSON strings, in text that need not be valid JSON.

A backslash escapes quotes outside of strings too. So whether a quote counts does not depend on where a search begins,
and of all the searches in one text at most two go through to its end without finding anything.
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
        """The first of the tags outside of strings; the end of the text when there is none."""
        match = self._before.match(text, start)
        return match.end() if match else start

    def nearest(self, text: str, start: int) -> int:
        """The first of the tags, wherever it stands; -1 when there is none."""
        match = self._any.search(text, start)
        return match.start() if match else -1

    def at(self, text: str, position: int) -> bool:
        """Whether one of the tags stands here."""
        return self._any.match(text, position) is not None


def element_end(text: str, start: int, end: int) -> int:
    """Where the element of a list that begins at `start` is over: before the comma or the bracket after it, at most
    at `end`; -1 when neither comes.
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
    """Where the bracket that opens at `start` is closed again, at most `end`; -1 when it is not."""
    depth = 0
    for token in _TOKEN.finditer(text, start, end):
        if token.group() in "[{":
            depth += 1
        elif token.group() in "]}":
            depth -= 1
            if depth <= 0:
                return token.end()
    return -1
