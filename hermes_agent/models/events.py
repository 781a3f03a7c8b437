"""Server-sent events: the data of each event, from the bytes of a stream as they arrive."""

from __future__ import annotations

import codecs
from collections.abc import Iterator


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
        self._carriage_return = False
        """Whether the last character was a carriage return. It ends a line, and the next one may belong to it."""

    def feed(self, piece: bytes) -> Iterator[str]:
        """Yield the data of each event that ends in this piece."""
        return self._read(self._decode(piece))

    def finish(self) -> Iterator[str]:
        """Yield the data of an event that the end of the stream completes."""
        return self._read(self._decode(b"", final=True) + "\n\n")

    def _read(self, text: str) -> Iterator[str]:
        if not text:
            return
        if self._carriage_return:
            text = "\r" + text
        self._carriage_return = text.endswith("\r")
        if self._carriage_return:
            text = text[:-1]
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        *lines, rest = text.split("\n")
        for line in lines:
            if self._pieces:
                line = "".join([*self._pieces, line])
                self._pieces.clear()
            if line:
                self._add_line(line)
            elif self._data:
                yield self._take_event()
        if rest:
            self._pieces.append(rest)

    def _add_line(self, line: str) -> None:
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))

    def _take_event(self) -> str:
        event = "\n".join(self._data)
        self._data.clear()
        return event
