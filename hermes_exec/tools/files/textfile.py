"""Conversion between a file's bytes and text, with encodings, byte order marks and line ends.

Every byte outside of an edit is preserved.
"""

from __future__ import annotations

import bisect
import codecs
import re
from dataclasses import dataclass
from functools import cached_property

_BOMS: tuple[tuple[bytes, str], ...] = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
SNIFF_BYTES = 8 << 10
"""How much of a file decides whether it is text (`sniffBytes` of the runner's search)."""

_INVALID = re.compile("[\udc80-\udcff]")
_VALID_NON_ASCII = re.compile("[^\x00-\x7f\udc80-\udcff]")


class UnclearEncoding(Exception):
    """Raised when new text stands among lines of two encodings."""


@dataclass(frozen=True)
class TextFile:
    """Decoded bytes of a file.

    `text` keeps the file's own line ends and has no byte order mark. In a file of encoding `mixed`, `line_encodings`
    has the encoding of each line, or None if it is ASCII.
    """

    text: str
    encoding: str
    bom: bytes = b""
    line_encodings: tuple[str | None, ...] = ()

    def encode(self, start: int, end: int) -> bytes:
        """Return the bytes of a part of the text."""
        part = self.text[start:end]
        if not self.line_encodings:
            return _encode(part, self.encoding)
        first = self._line_at(start)
        lines = enumerate(part.split("\n"), first)
        return b"\n".join(_encode(line, self.line_encodings[number] or "utf-8") for number, line in lines)

    def encode_edit(self, start: int, end: int, text: str) -> bytes:
        """Return the bytes of a text that replaces a part: in the encoding of the lines that it replaces, or else of
        the nearest line that is not ASCII.

        Raises:
            UnicodeEncodeError: If the encoding cannot represent a character.
            UnclearEncoding: If these lines have two encodings.
        """
        if not self.line_encodings:
            return _encode(text, self.encoding)
        first, last = self._line_at(start), self._line_at(max(start, end - 1))
        before: dict[str, set[str]] = {}
        for number, line in enumerate(self._lines[first : last + 1], first):
            if (encoding := self.line_encodings[number]) is not None:
                before.setdefault(line.removesuffix("\r"), set()).add(encoding)
        around = set().union(*before.values()) or {self._nearest_encoding(first, last)}
        encoded = []
        for line in text.split("\n"):
            choices = {"utf-8"} if line.isascii() else before.get(line.removesuffix("\r"), around)
            if len(choices) > 1:
                raise UnclearEncoding
            encoded += [_encode(line, next(iter(choices)))]
        return b"\n".join(encoded)

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def _line_at(self, offset: int) -> int:
        return bisect.bisect_right(self._line_starts, offset) - 1

    def _nearest_encoding(self, first: int, last: int) -> str:
        numbers = (number for number, encoding in enumerate(self.line_encodings) if encoding is not None)
        nearest = min(numbers, key=lambda number: max(first - number, number - last))
        return self.line_encodings[nearest] or "utf-8"

    @cached_property
    def line_end(self) -> str:
        """The most frequent line end; LF if there is none."""
        crlf = self.text.count("\r\n")
        return "\r\n" if crlf * 2 > self.text.count("\n") else "\n"

    def readable_text(self) -> str:
        """Return the text for a reader, with a replacement character for each byte that is not UTF-8."""
        return _INVALID.sub("\ufffd", self.text)


def _encode(text: str, encoding: str) -> bytes:
    return text.encode(encoding, "surrogateescape" if encoding == "utf-8" else "strict")


def is_binary(start: bytes) -> bool:
    """Check whether the first `SNIFF_BYTES` of a file contain a NUL character.

    The runner's search has the same rule (`runner/internal/search/text.go`), and the same text of each line.
    """
    start = start[:SNIFF_BYTES]
    encoding = utf16_of(start)
    return b"\0" in start if encoding is None else "\0" in start.decode(encoding, "replace")


def utf16_of(start: bytes) -> str | None:
    """Return the encoding of a file whose first bytes are a mark of UTF-16, else None."""
    return next((encoding for bom, encoding in _BOMS[1:] if start.startswith(bom)), None)


def decode(data: bytes) -> TextFile | None:
    """Return `data` as text, or None if it is binary (contains a NUL character).

    Valid UTF-8 is decoded as such. Otherwise the text is Latin-1 if none of its non-ASCII characters is valid UTF-8.
    Otherwise this holds for each line (`mixed`), and a line with both is UTF-8 with surrogate escapes. All encode to
    the same bytes again.
    """
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            try:
                text = data[len(bom) :].decode(encoding)
            except UnicodeDecodeError:
                break
            return None if "\0" in text else TextFile(text, encoding, bom)
    if b"\0" in data:
        return None
    file = decode_unmarked(data)
    return _decode_lines(data) if file.encoding == "utf-8" and _INVALID.search(file.text) else file


def _decode_lines(data: bytes) -> TextFile:
    lines = [decode_unmarked(line) for line in data.split(b"\n")]
    encodings = tuple(None if line.text.isascii() else line.encoding for line in lines)
    return TextFile("\n".join(line.text for line in lines), "mixed", line_encodings=encodings)


def decode_unmarked(data: bytes) -> TextFile:
    """Return bytes without a byte order mark as text of one encoding, as `decode` does."""
    text = data.decode("utf-8", "surrogateescape")
    if _INVALID.search(text) and not _VALID_NON_ASCII.search(text):
        return TextFile(data.decode("latin-1"), "latin-1")
    return TextFile(text, "utf-8")


class LfView:
    """A text with every CRLF shown as LF, and the mapping from its offsets to offsets in the original text."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self._crlf: list[int] = []
        if len(self.text) != len(text):
            self._crlf = [match.start() - index for index, match in enumerate(re.finditer("\r\n", text))]

    def offset(self, position: int) -> int:
        """Return the offset in the original text for a position in the view (before the CR at a line end)."""
        return position + bisect.bisect_left(self._crlf, position)

    def line_end_near(self, position: int, default: str) -> str:
        """Return the line end of the line at `position`, of the previous line if it is the last, or else `default`."""
        at = self.text.find("\n", position)
        if at < 0:
            at = self.text.rfind("\n", 0, position)
        if at < 0:
            return default
        index = bisect.bisect_left(self._crlf, at)
        return "\r\n" if index < len(self._crlf) and self._crlf[index] == at else "\n"
