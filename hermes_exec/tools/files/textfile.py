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


def decode(data: bytes) -> TextFile | None:
    """Return `data` as text, or None if it is binary (contains a NUL byte and has no UTF-16 mark).

    Valid UTF-8 is decoded as such. Otherwise the text is Latin-1 if none of its non-ASCII characters is valid UTF-8,
    else UTF-8 with surrogate escapes. Both encode to the same bytes again.
    """
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            try:
                return TextFile(data[len(bom) :].decode(encoding), encoding, bom)
            except UnicodeDecodeError:
                break
    if b"\0" in data:
        return None
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
