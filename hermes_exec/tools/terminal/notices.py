"""Checks of the watched background processes on demand; nothing runs between two checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes_exec.tools.state.tool_state import ToolState
from hermes_exec.tools.state.watch import Notice, RateLimit, Watch, end_notice, match_notice, shutoff_notice
from hermes_exec.tools.terminal import background

if TYPE_CHECKING:
    from hermes_exec.slot.process import Process

_TAIL_CHARS = 2_000
_RESULT_WAIT_S = 10.0
SEARCHED_BYTES = 16 << 20
"""The maximum output that one check searches, over all watched processes. The next check continues from there."""


async def collect(state: ToolState, now: Callable[[], float]) -> list[Notice]:
    """Return the notices since the last check, in the order in which the watches began, and drop finished watches."""
    if not state.watches:
        return []
    processes = await background.processes(state.slot)
    most = SEARCHED_BYTES // len(state.watches)
    notices: list[Notice] = []
    for session_id, watch in list(state.watches.items()):
        process = processes.get(session_id)
        if process is None:
            del state.watches[session_id]
            continue
        try:
            notices += await _collect_from(state, watch, process, now(), most)
        except ProcessLookupError:  # forgotten since it was listed, because many others ended
            state.watches.pop(session_id, None)
    return notices


async def _collect_from(state: ToolState, watch: Watch, process: Process, now: float, most: int) -> list[Notice]:
    notices: list[Notice] = []
    if watch.patterns:
        notices += await _search_output(watch, process, state.rate_limit, now, most)
    if process.ended_at is not None and (not watch.patterns or watch.offset >= process.stdout_bytes):
        if watch.notify_on_complete:
            result = await process.wait(_RESULT_WAIT_S)
            notices.append(end_notice(watch, result.exit_code, await background.tail(process, _TAIL_CHARS)))
        state.watches.pop(watch.session_id, None)
    return notices


async def _search_output(watch: Watch, process: Process, rate_limit: RateLimit, now: float, most: int) -> list[Notice]:
    """Search the output up to its length when the process was listed."""
    end = min(process.stdout_bytes, watch.offset + most)
    while watch.offset < end:
        data, watch.offset = await process.output(watch.offset, limit_bytes=background.PIECE_BYTES)
        if not data:
            break
        watch.search(data, ended=False)
    if process.ended_at is not None and watch.offset >= process.stdout_bytes:
        watch.search(b"", ended=True)
    lines, matched = watch.take()
    if not matched:
        return []
    if watch.admit(now) and rate_limit.admit(now):
        return [match_notice(watch, lines, matched)]
    return [shutoff_notice(watch)] if watch.stop_if_overfull() else []
