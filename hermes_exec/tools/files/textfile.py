"""A file's bytes as text and back, without changing a byte that is not edited: encodings, byte order marks, line
ends.
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
    """Decoded bytes. `text` has the file's own line ends and no byte order mark; `encode` is the exact inverse of
    `decode`.
    """

    text: str
    encoding: str
    bom: bytes = b""

    def encode(self, text: str) -> bytes:
        """Return `text` as bytes of this file's encoding. Raises UnicodeEncodeError for what the encoding cannot
        hold.
        """
        return self.bom + text.encode(self.encoding, "surrogateescape" if self.encoding == "utf-8" else "strict")

    @cached_property
    def line_end(self) -> str:
        """The line end that most lines have; LF when there is none."""
        crlf = self.text.count("\r\n")
        return "\r\n" if crlf * 2 > self.text.count("\n") else "\n"

    def readable_text(self) -> str:
        """The text for a reader: bytes that are no UTF-8 show as the replacement character."""
        return _INVALID.sub("\ufffd", self.text)


def decode(data: bytes) -> TextFile | None:
    """Return `data` as text, or None when it is binary (holds a NUL byte and has no UTF-16 mark).

    UTF-8 where it is valid. Otherwise Latin-1 when no non-ASCII character of it is valid UTF-8, else UTF-8 with its
    invalid bytes kept aside: both ways give back the same bytes.
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
    """A text with every CRLF shown as LF, and the way back from its offsets to those of the text."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self._crlf: list[int] = []
        if len(self.text) != len(text):
            self._crlf = [match.start() - index for index, match in enumerate(re.finditer("\r\n", text))]

    def offset(self, position: int) -> int:
        """The offset in the original text of a position in the view (before the CR where it is a line end)."""
        return position + bisect.bisect_left(self._crlf, position)

    def line_end_near(self, position: int, default: str) -> str:
        """The line end of the line that holds `position`, of the one before it when it is the last, else `default`."""
        at = self.text.find("\n", position)
        if at < 0:
            at = self.text.rfind("\n", 0, position)
        if at < 0:
            return default
        index = bisect.bisect_left(self._crlf, at)
        return "\r\n" if index < len(self._crlf) and self._crlf[index] == at else "\n"
