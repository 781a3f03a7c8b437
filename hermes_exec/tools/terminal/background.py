"""The slot's background processes by session id, whichever Toolbox started them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec.tools.terminal.ansi import strip_ansi

if TYPE_CHECKING:
    from hermes_exec.slot.process import Process
    from hermes_exec.slot.slot import Slot

FORGOTTEN_MESSAGE = "The process has ended, and it and its output are no longer known: many others have ended since."
_BYTES_PER_CHAR = 4
PIECE_BYTES = 1 << 18
"""The part of a log that is searched or counted at a time."""


async def processes(slot: Slot) -> dict[str, Process]:
    """Return session id to process for all processes that a terminal tool started in this slot.

    Ended processes are included, processes of other slots never.
    """
    return {process.tag: process for process in await slot.spawned() if process.tag and process.tag.startswith("proc_")}


async def count_running(slot: Slot) -> int:
    """Return the number of running background processes."""
    return sum(process.ended_at is None for process in (await processes(slot)).values())


async def tail(process: Process, chars: int) -> str:
    """Return the last `chars` characters of the output, without control sequences."""
    data, _ = await process.output(-chars * _BYTES_PER_CHAR * 2)
    return strip_ansi(data.decode("utf-8", "replace"))[-chars:]


def uptime_s(process: Process) -> int:
    """Return the seconds from the start of the process to its end, or to now."""
    return max(0, int(process.age_s))
