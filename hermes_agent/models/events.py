"""Server-sent events: the data of each event, from the bytes of a stream as they arrive."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

_LINE_END = re.compile(r"\r\n|\n|\r")


class EventDecoder:
    """Decodes a stream, in pieces of any size. Source of the format:
    https://html.spec.whatwg.org/multipage/server-sent-events.html.

    Events without data and comments are left out. Unlike a browser it also yields an event at the end of the stream
    without a blank line after it, because some servers write none.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._pieces: list[str] = []
        """The pieces of the line that has not ended."""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> Iterator[str]:
        """Yield the data of each event that ends in this piece."""
        text = self._decode(piece)
        if self._pieces and self._pieces[-1].endswith("\r"):
            # This may have been the first half of a line end.
            text = "\r" + text
            self._pieces[-1] = self._pieces[-1][:-1]
        begin = 0
        for end in _LINE_END.finditer(text):
            if end.group() == "\r" and end.end() == len(text):
                break
            yield from self._line("".join([*self._pieces, text[begin : end.start()]]))
            self._pieces.clear()
            begin = end.end()
        if begin < len(text):
            self._pieces.append(text[begin:])

    def finish(self) -> Iterator[str]:
        """Yield the data of an event that the end of the stream completes."""
        text = "".join(self._pieces) + self._decode(b"", final=True)
        yield from self._line(text.removesuffix("\r"))
        yield from self._line("")

    def _line(self, line: str) -> Iterator[str]:
        if line:
            name, _, value = line.partition(":")
            if name == "data":
                self._data.append(value.removeprefix(" "))
        elif self._data:
            yield "\n".join(self._data)
            self._data.clear()
