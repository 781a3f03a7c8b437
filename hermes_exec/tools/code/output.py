"""The output of a program: its head and tail, read from the log that the slot keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import anyio

from hermes_exec.tools.call.budget import save_output, saved_note
from hermes_exec.tools.terminal.ansi import strip_ansi

if TYPE_CHECKING:
    from hermes_exec.slot.process import Process
    from hermes_exec.slot.slot import Slot

LOG_BYTES = 4 << 20
"""The size of the log of each stream. A longer output loses its head."""
HEAD_SHARE = 0.4
MARK_S = 5.0
READ_BYTES = 1 << 20
"""The part of a log that is copied to a file at a time."""


@dataclass(frozen=True)
class StreamText:
    """The text of a stream, shortened to its head and tail if it is too long.

    `total_bytes` and `shown_bytes` count the whole output and the shown part. `lost` is True if the log no longer has
    the end of the output.
    """

    text: str
    total_bytes: int
    shown_bytes: int
    lost: bool = False

    @property
    def omitted_bytes(self) -> int:
        """The number of bytes that were left out."""
        return self.total_bytes - self.shown_bytes


async def read_output(
    slot: Slot,
    process: Process,
    stream: Literal["stdout", "stderr"],
    limit: int,
    start: int = 0,
    end: int | None = None,
) -> StreamText:
    """Read the log of a stream from `start` to `end` (None: the end of the log), at most `limit` bytes.

    A longer output is written to a file in the slot, and the text names the path.
    """
    if end is None:
        end = (await process.output(-1, stream=stream))[1]
    total = max(0, end - start)
    if total <= limit:
        data = await _read_range(process, stream, start, end)
        if len(data) == total:
            return StreamText(_text(data), total, total)
    head_bytes = int(limit * HEAD_SHARE)
    head = await _read_range(process, stream, start, start + head_bytes)
    tail = await _read_range(process, stream, end - (limit - head_bytes), end)
    shown_bytes = len(head) + len(tail)
    save_note = await _save_range(slot, process, stream, start, end)
    notice = f"\n\n... [OUTPUT TRUNCATED - {total - shown_bytes} of {total} bytes omitted{save_note}] ...\n\n"
    return StreamText(_text(head) + notice + _text(tail), total, shown_bytes, lost=not tail)


async def _read_range(process: Process, stream: Literal["stdout", "stderr"], start: int, end: int) -> bytes:
    """Read the bytes from `start` to `end`; nothing if the log no longer has the first of them."""
    pieces: list[bytes] = []
    while start < end:
        data, following = await process.output(start, stream=stream, limit_bytes=end - start)
        if not data or following - len(data) != start:
            break
        pieces.append(data)
        start = following
    return b"".join(pieces)


async def _save_range(slot: Slot, process: Process, stream: Literal["stdout", "stderr"], start: int, end: int) -> str:
    """Write the bytes from `start` to `end` that the log still has to a file in the slot, and return a note on it."""
    data, following = await process.output(start, stream=stream, limit_bytes=1)
    oldest = position = following - len(data)
    path: str | None = None
    while piece := await _read_range(process, stream, position, min(end, position + READ_BYTES)):
        saved_path = await save_output(slot, piece, path)
        if saved_path is None:
            break
        path, position = saved_path, position + len(piece)
    return saved_note(path, is_whole=(oldest, position) == (start, end))


async def find_mark(process: Process, stream: Literal["stdout", "stderr"], mark: bytes) -> tuple[int, int]:
    """Return the offsets of the start and end of the mark in the log.

    If the mark does not come within MARK_S, both are the end of the log.
    """
    with anyio.move_on_after(MARK_S):
        while True:
            data, following = await process.output(-(1 << 12), stream=stream)
            at = data.rfind(mark)
            if at >= 0:
                first = following - len(data)
                return first + at, first + at + len(mark)
            await anyio.sleep(0.002)
    following = (await process.output(-1, stream=stream))[1]
    return following, following


def _text(data: bytes) -> str:
    return strip_ansi(data.decode("utf-8", "replace"))
