"""Extraction of one page of lines from a file that is read in chunks, with a count of all lines."""

from __future__ import annotations

import codecs
import hashlib
from typing import NamedTuple

from hermes_exec.tools.files.textfile import decode_unmarked, utf16_of


class PageText(NamedTuple):
    """One page as `N|line` rows.

    `total_lines` includes a last line without a line end; `next_offset` is the first line after the page.
    """

    content: str
    total_lines: int
    truncated: bool
    truncated_by: str | None
    next_offset: int
    cut_lines: int
    encoding: str
    fingerprint: bytes


class PageReader:
    """Reads a file's bytes in order. Keeps only the lines of the page, each limited in length, and a hash
    of the file.
    """

    def __init__(self, offset: int, limit: int, max_chars: int, max_line_chars: int) -> None:
        self._first, self._last = offset, offset + limit - 1
        self._max_chars, self._max_line_chars = max_chars, max_line_chars
        self._hash = hashlib.blake2b(digest_size=16)
        self._decoder: codecs.IncrementalDecoder | None = None
        self._is_first = True
        self._breaks = 0
        self._open_line = False
        self._kept: list[bytes] = []
        self._keep_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes."""
        self._hash.update(chunk)
        if self._is_first and chunk:
            self._is_first = False
            if utf16_of(chunk) is not None:
                self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
            chunk = chunk.removeprefix(codecs.BOM_UTF8)
        if self._decoder is not None:
            chunk = self._decoder.decode(chunk).encode("utf-8", "replace")
        if not chunk:
            return
        breaks = chunk.count(b"\n")
        if self._breaks + breaks >= self._first - 1 and self._breaks < self._last:
            self._keep(chunk)
        self._breaks += breaks
        self._open_line = not chunk.endswith(b"\n")

    def _keep(self, chunk: bytes) -> None:
        line = self._breaks + 1
        start = 0
        while start < len(chunk) and line <= self._last:
            at = chunk.find(b"\n", start)
            end = len(chunk) if at < 0 else at
            if line >= self._first:
                index = line - self._first
                while len(self._kept) <= index:
                    self._kept.append(b"")
                room = self._max_line_chars * 4 + 8 - len(self._kept[index])
                if room > 0 and self._keep_bytes <= self._max_chars * 4:
                    piece = chunk[start : min(end, start + room)]
                    self._kept[index] += piece
                    self._keep_bytes += len(piece)
            if at < 0:
                break
            start, line = at + 1, line + 1

    def page(self) -> PageText:
        """Return the page, after all bytes were fed."""
        total = self._breaks + (1 if self._open_line else 0)
        lines = self._kept[: max(0, min(self._last, total) - self._first + 1)]
        texts, encoding = _decode_lines(lines)
        rows: list[str] = []
        used = cut = 0
        truncated_by = None
        for number, line in enumerate(texts, self._first):
            row, was_cut = self._row(number, line)
            if rows and used + len(row) + 1 > self._max_chars:
                truncated_by = "bytes"
                break
            rows.append(row)
            used += len(row) + 1
            cut += was_cut
        next_offset = self._first + len(rows)
        truncated = bool(rows) and next_offset <= total
        by = truncated_by or ("lines" if truncated else None)
        if self._decoder is not None:
            encoding = "utf-16"
        return PageText("\n".join(rows), total, truncated, by, next_offset, cut, encoding, self._hash.digest())

    def _row(self, number: int, line: str) -> tuple[str, bool]:
        line = line.removesuffix("\r")
        if len(line) > self._max_line_chars:
            return f"{number}|{line[: self._max_line_chars]}... [truncated]", True
        return f"{number}|{line}", False


def _decode_lines(lines: list[bytes]) -> tuple[list[str], str]:
    """Return lines as text, each in its own encoding, as a search finds it. Also return the encoding, or "mixed"."""
    files = [decode_unmarked(line) for line in lines]
    encodings = {file.encoding for file in files if not file.text.isascii()} or {"utf-8"}
    texts = [file.readable_text().replace("\0", "\ufffd") for file in files]
    return texts, encodings.pop() if len(encodings) == 1 else "mixed"
