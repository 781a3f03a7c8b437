"""Checks the watched background processes on demand: nothing runs in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes_exec.tools.state.tool_state import ToolState
from hermes_exec.tools.state.watch import Notice, Rate, Watch, completed_notice, disabled_notice, match_notice
from hermes_exec.tools.terminal import background

if TYPE_CHECKING:
    from hermes_exec.slot.process import Process

_TAIL_CHARS = 2_000
_ENDED_S = 10.0
SEARCHED_BYTES = 16 << 20
"""How much output is searched at a time, of all watched processes together: the rest waits for the next time."""


async def collect(state: ToolState, now: Callable[[], float]) -> list[Notice]:
    """Return what happened since the last time, in the order of the processes' starts. Watches that have nothing
    more to tell are dropped.
    """
    if not state.watches:
        return []
    known = await background.processes(state.slot)
    most = SEARCHED_BYTES // len(state.watches)
    notices: list[Notice] = []
    for session_id, watch in list(state.watches.items()):
        one = known.get(session_id)
        if one is None:
            del state.watches[session_id]
            continue
        try:
            notices += await _news(state, watch, one, now(), most)
        except ProcessLookupError:  # many others have ended since it was listed
            state.watches.pop(session_id, None)
    return notices


async def _news(state: ToolState, watch: Watch, one: Process, now: float, most: int) -> list[Notice]:
    news: list[Notice] = []
    if watch.patterns:
        news += await _matches(watch, one, state.rate, now, most)
    if one.ended_at is not None and (not watch.patterns or watch.offset >= one.stdout_bytes):
        if watch.notify_on_complete:
            result = await one.wait(_ENDED_S)
            news.append(completed_notice(watch, result.exit_code, await background.tail(one, _TAIL_CHARS)))
        state.watches.pop(watch.session_id, None)
    return news


async def _matches(watch: Watch, one: Process, rate: Rate, now: float, most: int) -> list[Notice]:
    """Search what there was of the output when the process was listed, however much it prints meanwhile."""
    end = min(one.stdout_bytes, watch.offset + most)
    while watch.offset < end:
        data, watch.offset = await one.output(watch.offset, limit_bytes=background.PIECE_BYTES)
        if not data:
            break
        watch.search(data, ended=False)
    if one.ended_at is not None and watch.offset >= one.stdout_bytes:
        watch.search(b"", ended=True)
    lines, matched = watch.take()
    if not matched:
        return []
    if watch.admit(now) and rate.admit(now):
        return [match_notice(watch, lines, matched)]
    return [disabled_notice(watch)] if watch.overfull() else []
