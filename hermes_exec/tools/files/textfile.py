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


@dataclass(frozen=True)
class TextFile:
    """Decoded bytes of a file.

    `text` keeps the file's own line ends and has no byte order mark; `encode` is the exact inverse of `decode`.
    """

    text: str
    encoding: str
    bom: bytes = b""

    def encode(self, text: str) -> bytes:
        """Return `text` as bytes in the encoding of this file.

        Raises:
            UnicodeEncodeError: If the encoding cannot represent a character.
        """
        return self.bom + text.encode(self.encoding, "surrogateescape" if self.encoding == "utf-8" else "strict")

    @cached_property
    def line_end(self) -> str:
        """The most frequent line end; LF if there is none."""
        crlf = self.text.count("\r\n")
        return "\r\n" if crlf * 2 > self.text.count("\n") else "\n"

    def readable_text(self) -> str:
        """Return the text for a reader, with a replacement character for each byte that is not UTF-8."""
        return _INVALID.sub("\ufffd", self.text)


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

    Valid UTF-8 is decoded as such. Otherwise the text is Latin-1 if none of its non-ASCII characters is valid UTF-8,
    else UTF-8 with surrogate escapes. Both encode to the same bytes again.
    """
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            try:
                text = data[len(bom) :].decode(encoding)
            except UnicodeDecodeError:
                break
            return None if "\0" in text else TextFile(text, encoding, bom)
    return None if b"\0" in data else decode_unmarked(data)


def decode_unmarked(data: bytes) -> TextFile:
    """Return bytes without a byte order mark as text, as `decode` does."""
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
