"""Foreground commands in a pseudo-terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from hermes_exec.tools.call.live_output import LiveOutput

if TYPE_CHECKING:
    from hermes_exec.results import RunResult
    from hermes_exec.slot.run import OnOutput
    from hermes_exec.slot.session import Session

_CLEANUP_S = 5.0
_HALF_BYTES = 1 << 19
"""The maximum that is read of the head and of the tail."""


async def run_in_pty(
    session: Session,
    command: str,
    workdir: str | None,
    timeout_s: float,
    on_output: OnOutput | None = None,
    *,
    limit_bytes: int,
) -> RunResult:
    """Run `command` with a terminal as its stdin, stdout and stderr; end its process tree after `timeout_s`.

    The command starts from the session's state and does not change it.
    """
    process = await session.spawn(command, cwd=workdir, pty=True, output_limit_bytes=limit_bytes)
    timed_out = False
    live = LiveOutput(process, on_output, {"stdout": 0})
    try:
        try:
            result = await live.during(lambda: process.wait(timeout_s))
        except TimeoutError:
            timed_out = True
            await process.kill()
            result = await process.wait(_CLEANUP_S)
        await live.finish({"stdout": process.stdout_bytes})
    except BaseException:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_CLEANUP_S):
            await process.kill()
        raise
    head, after = await process.output(0, limit_bytes=_HALF_BYTES)
    tail, end = await process.output(max(after, process.stdout_bytes - _HALF_BYTES))
    head_text = head.replace(b"\r\n", b"\n")
    output, dropped = head_text + tail.replace(b"\r\n", b"\n"), end - len(head) - len(tail)
    cut_at = len(head_text) if len(head) == after else 0
    return replace(
        result,
        stdout_bytes=output,
        output_bytes=output,
        stdout_total_bytes=len(output) + dropped,
        stdout_cut_at=cut_at,
        output_cut_at=cut_at,
        output_dropped_bytes=dropped,
        timed_out=timed_out or result.timed_out,
    )
