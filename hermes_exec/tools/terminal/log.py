"""Lines from the log of a background process: all lines are counted, and only the requested ones are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hermes_exec.tools.terminal.ansi import strip_ansi
from hermes_exec.tools.terminal.background import PIECE_BYTES

if TYPE_CHECKING:
    from hermes_exec.slot.process import Process

MAX_PART_BYTES = 1 << 20
"""The maximum size of one part of a log."""


class LogPart(NamedTuple):
    """`line_count` lines from number `first` on, without control sequences, of `total` lines in the log.

    `lost_bytes` is the size of older output that the log no longer has. `cut` is True if the requested lines exceed the
    maximum size.
    """

    text: str
    first: int
    line_count: int
    total: int
    lost_bytes: int
    cut: bool


async def read_log_part(process: Process, first: int, most: int) -> LogPart:
    """Return at most `most` lines from line `first` on, which counts from the end if it is negative.

    Output that is printed after the process was listed is ignored.
    """
    window = _LogWindow(first)
    position = 0
    while position < process.stdout_bytes:
        data, following = await process.output(position, limit_bytes=PIECE_BYTES)
        if following - len(data) != position:  # older bytes were dropped meanwhile: start again here
            window = _LogWindow(first, following - len(data))
        if not data:
            break
        window.add(data)
        position = following
    part = window.part(most)
    if first < 0 and part.cut and not part.line_count:  # the line is further from the end than the window reaches
        return await read_log_part(process, max(0, part.total + first), most)
    return part


class _LogWindow:
    """A window on a log, at most MAX_PART_BYTES: its end if `first` is negative, otherwise from line `first` on."""

    def __init__(self, first: int, lost_bytes: int = 0) -> None:
        self._first, self._lost_bytes = first, lost_bytes
        self._data = bytearray()
        self._begins = self._newlines = 0
        self._open = self._full = False

    def add(self, data: bytes) -> None:
        """Count the lines of the next piece of the log, and keep the requested ones."""
        newlines_before, self._newlines = self._newlines, self._newlines + data.count(b"\n")
        self._open = not data.endswith(b"\n")
        if self._first >= 0 and (self._newlines < self._first or self._full):
            return
        if not self._data:
            self._begins = newlines_before
        self._data += data
        excess = len(self._data) - MAX_PART_BYTES
        if excess > 0:
            self._full = True
            dropped = slice(0, excess) if self._first < 0 else slice(MAX_PART_BYTES, None)
            self._begins += self._data[dropped].count(b"\n") if self._first < 0 else 0
            del self._data[dropped]

    def part(self, most: int) -> LogPart:
        """Return at most `most` of the lines."""
        total = self._newlines + self._open
        first = max(0, total + self._first) if self._first < 0 else min(self._first, total)
        count = min(most, total - first)
        lines = bytes(self._data).split(b"\n")
        skipped = max(0, first - self._begins)
        missing = max(0, self._begins - first)
        part_lines = lines[skipped : skipped + max(0, count - missing)]
        cut = self._full and (first <= self._begins if self._first < 0 else skipped + count >= len(lines))
        text = strip_ansi(b"\n".join(part_lines).decode("utf-8", "replace"))
        return LogPart(text, first + missing, len(part_lines), total, self._lost_bytes, cut)
