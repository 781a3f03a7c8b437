"""Checks the watched background processes on demand: nothing runs in between."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes_exec.tools.state.tool_state import ToolState
from hermes_exec.tools.state.watch import Notice, Watch, completed_notice, disabled_notice, match_notice
from hermes_exec.tools.terminal import background
from hermes_exec.tools.terminal.ansi import strip_ansi

if TYPE_CHECKING:
    from hermes_exec.slot.process import Process

_TAIL_CHARS = 2_000
_ENDED_S = 10.0


async def collect(state: ToolState, now: Callable[[], float]) -> list[Notice]:
    """Return what happened since the last time, in the order of the processes' starts. Watches that have nothing
    more to tell are dropped.
    """
    if not state.watches:
        return []
    known = await background.processes(state.slot)
    notices: list[Notice] = []
    for session_id, watch in list(state.watches.items()):
        one = known.get(session_id)
        if one is None:
            del state.watches[session_id]
            continue
        ended = one.ended_at is not None
        if watch.patterns:
            notices += await _matches(state, watch, one, ended, now())
        if ended:
            state.watches.pop(session_id, None)
            if watch.notify_on_complete:
                result = await one.wait(_ENDED_S)
                notices.append(completed_notice(watch, result.exit_code, await background.tail(one, _TAIL_CHARS)))
    return notices


async def _matches(state: ToolState, watch: Watch, one: Process, ended: bool, now: float) -> list[Notice]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    lines: list[str] = []
    while True:
        data, following = await one.output(watch.offset)
        if not data:
            break
        watch.offset = following
        lines += watch.matches(strip_ansi(decoder.decode(data)), ended=False)
    if ended:
        lines += watch.matches("", ended=True)
    if not lines:
        return []
    if watch.admit(now) and state.rate.admit(now):
        return [match_notice(watch, lines)]
    return [disabled_notice(watch)] if watch.overfull() else []
