"""The slot's background processes as the tools see them: by session id, whichever Toolbox started them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec.tools.terminal.ansi import strip_ansi

if TYPE_CHECKING:
    from hermes_exec.slot.process import Process
    from hermes_exec.slot.slot import Slot

FORGOTTEN_MESSAGE = "The process has ended, and it and its output are no longer known: many others have ended since."
_BYTES_A_CHAR = 4
PIECE_BYTES = 1 << 18
"""How much of a log is searched, or counted, at a time."""


async def processes(slot: Slot) -> dict[str, Process]:
    """Session id to process, for everything that a terminal tool started in this slot, ended ones included. Other
    slots' are never among them.
    """
    return {process.tag: process for process in await slot.spawned() if process.tag and process.tag.startswith("proc_")}


async def count_running(slot: Slot) -> int:
    """How many background processes run."""
    return sum(process.ended_at is None for process in (await processes(slot)).values())


async def tail(process: Process, chars: int) -> str:
    """The last `chars` characters of the output, without control sequences."""
    data, _ = await process.output(-chars * _BYTES_A_CHAR * 2)
    return strip_ansi(data.decode("utf-8", "replace"))[-chars:]


def uptime_s(process: Process) -> int:
    """Seconds from its start to now, or to its end."""
    return max(0, int(process.age_s))
