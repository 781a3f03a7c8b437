"""The process tool: inspect, write to and end the slot's background processes."""

from __future__ import annotations

import difflib
import errno
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from hermes_exec.errors import ConfigError, ExecError
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.live_output import LiveOutput
from hermes_exec.tools.call.os_errors import os_failure
from hermes_exec.tools.call.results import CallOutcome
from hermes_exec.tools.state.tool_state import ToolState
from hermes_exec.tools.terminal import background
from hermes_exec.tools.terminal.log import MAX_PART_BYTES, read_log_part

if TYPE_CHECKING:
    from hermes_exec.slot.process import Process
    from hermes_exec.slot.run import OnOutput

_PREVIEW_CHARS = 1_000
_TAIL_CHARS = 2_000
_LOG_LINES = 200
_RESULT_WAIT_S = 10.0


class _Call(NamedTuple):
    state: ToolState
    session_id: str
    process: Process
    arguments: dict[str, Any]
    on_output: OnOutput | None


async def process(state: ToolState, arguments: dict[str, Any], on_output: OnOutput | None = None) -> CallOutcome:
    """Perform one action on a background process of this Toolbox's own slot."""
    action = arguments["action"]
    processes = await background.processes(state.slot)
    if action == "list":
        entries: list[dict[str, object]] = []
        for each in processes.values():
            with suppress(ProcessLookupError):  # forgotten since, because many others ended
                entries.append(await _describe(each))
        return CallOutcome({"processes": entries})
    session_id = arguments.get("session_id")
    if not session_id:
        raise ToolFailure("missing_argument", f"action='{action}' needs the argument 'session_id'.")
    if session_id not in processes:
        near = difflib.get_close_matches(session_id[:80], processes, n=1, cutoff=0.8)
        meant = f" Did you mean {near[0]}?" if near else " Use action='list' to see all."
        raise ToolFailure("no_process", f"No process with ID {session_id}.{meant}", status="not_found")
    return await _ACTIONS[action](_Call(state, session_id, processes[session_id], arguments, on_output))


async def _describe(process: Process) -> dict[str, object]:
    entry: dict[str, object] = {
        "session_id": process.tag,
        "command": process.command[:200],
        "pid": process.pid,
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(process.started_at)),
        "uptime_seconds": background.uptime_s(process),
        "status": "running" if process.ended_at is None else "exited",
        "output_preview": await background.tail(process, 200),
    }
    if process.ended_at is not None:
        entry["exit_code"] = (await process.wait(_RESULT_WAIT_S)).exit_code
    return entry


async def _describe_end(state: ToolState, process: Process) -> dict[str, object]:
    result = await process.wait(_RESULT_WAIT_S)
    killed = process.tag in state.killed_ids or result.signal is not None or result.killed is not None
    source = (
        "process.kill"
        if process.tag in state.killed_ids
        else f"signal {result.signal}"
        if result.signal is not None
        else ""
    )
    ending: dict[str, object] = {
        "exit_code": result.exit_code,
        "completion_reason": "killed" if killed else "exited",
        "termination_source": source,
    }
    if result.oom_killed:
        ending["completion_reason"], ending["termination_source"] = "out_of_memory", "slot memory limit"
    return ending


async def _poll(call: _Call) -> CallOutcome:
    state, process = call.state, call.process
    running = process.ended_at is None
    data: dict[str, object] = {
        "session_id": process.tag,
        "command": process.command,
        "status": "running" if running else "exited",
        "pid": process.pid,
        "uptime_seconds": background.uptime_s(process),
        "output_preview": await background.tail(process, _PREVIEW_CHARS),
    }
    return CallOutcome(data if running else data | await _describe_end(state, process))


async def _log(call: _Call) -> CallOutcome:
    state, session_id, process, arguments, _ = call
    limit, offset = arguments.get("limit") or _LOG_LINES, arguments.get("offset")
    part = await read_log_part(process, -limit if offset is None else offset, limit)
    data: dict[str, object] = {
        "session_id": process.tag,
        "command": process.command,
        "status": "running" if process.ended_at is None else "exited",
        "output": part.text,
        "total_lines": part.total,
        "showing": f"{part.line_count} lines",
    }
    if part.line_count:
        data["showing"] = f"{part.line_count} lines ({part.first}-{part.first + part.line_count - 1})"
    warnings = []
    if part.lost_bytes:
        lost_note = (
            f"The first {part.lost_bytes:,} bytes of the output are no longer kept; lines are counted after them."
        )
        warnings.append(lost_note)
    if part.cut:
        warnings.append(f"Not all of these lines are shown: only {MAX_PART_BYTES:,} bytes of them.")
    if warnings:
        data["_warning"] = " ".join(warnings)
    if process.ended_at is not None:
        data |= await _describe_end(state, process)
        if part.first + part.line_count == part.total:
            state.drop_end_notice(session_id)
    return CallOutcome(data)


async def _wait(call: _Call) -> CallOutcome:
    state, session_id, process, arguments, on_output = call
    limit_s = state.options.process_wait_max_s
    requested_s = arguments.get("timeout") or limit_s
    timeout_s = min(requested_s, limit_s)
    note = f"Requested wait of {requested_s}s was clamped to the limit of {limit_s}s" if requested_s > limit_s else None
    live = LiveOutput(process, on_output, {"stdout": process.stdout_bytes})
    try:
        await live.during(lambda: process.wait(timeout_s))
        await live.finish({"stdout": process.stdout_bytes})
    except TimeoutError:
        timeout_note = note or f"Waited {timeout_s}s, process still running"
        return CallOutcome(
            {
                "status": "timeout",
                "command": process.command,
                "output": await background.tail(process, _TAIL_CHARS),
                "timeout_note": timeout_note,
            }
        )
    state.drop_end_notice(session_id)
    data: dict[str, object] = {"status": "exited", "command": process.command, **await _describe_end(state, process)}
    data["output"] = await background.tail(process, _TAIL_CHARS)
    if note:
        data["timeout_note"] = note
    return CallOutcome(data)


async def _kill(call: _Call) -> CallOutcome:
    """End the process and everything it started, including the children of a process that has already ended."""
    state, session_id, process = call.state, call.session_id, call.process
    ended_before = process.ended_at is not None
    if not ended_before:
        state.killed_ids.add(session_id)
    receipt = await process.kill()
    state.watches.pop(session_id, None)
    counts = {"killed_processes": receipt.killed}
    output = await background.tail(process, _TAIL_CHARS)
    if receipt.left:
        message = f"{receipt.left} process(es) could not be ended."
        raise ToolFailure("kill_incomplete", message, status="error", session_id=process.tag, output=output, **counts)
    if ended_before:
        return CallOutcome(
            {
                "status": "already_exited",
                "command": process.command,
                **await _describe_end(state, process),
                **counts,
                "output": output,
            }
        )
    data: dict[str, object] = {
        "status": "killed",
        "session_id": process.tag,
        "completion_reason": "killed",
        "termination_source": "process.kill",
    }
    return CallOutcome(data | counts | {"output": output})


async def _send(call: _Call, data: bytes) -> CallOutcome:
    process, timeout_s = call.process, call.state.options.process_write_max_s
    ended_failure = ToolFailure("process_exited", "Process has already finished.", status="already_exited")
    if process.ended_at is not None:
        raise ended_failure
    try:
        if process.stdin is None:
            raise anyio.ClosedResourceError
        written = await process.stdin.send_within(data, timeout_s)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, ConfigError):
        if await _has_ended(process):
            ended_failure.message = "The process finished while it was written to."
            raise ended_failure from None
        message = "The process no longer accepts input."
        raise ToolFailure("stdin_closed", message, status="error") from None
    except OSError as error:  # a line that is too long for the settings of its terminal
        if error.errno != errno.EMSGSIZE:
            raise
        raise os_failure("stdin", error) from None
    if written < len(data):
        if await _has_ended(process):
            ended_failure.message = "The process finished while it was written to."
            raise ended_failure
        message = (
            f"The process does not read its input: the first {written} of {len(data)} bytes were written within "
            f"{timeout_s} s, the others were not and are dropped. Write them again once it reads, or kill it."
        )
        raise ToolFailure("not_read", message, status="error", bytes_written=written)
    return CallOutcome({"status": "ok", "bytes_written": written})


async def _has_ended(process: Process) -> bool:
    try:
        await process.wait(0)
    except TimeoutError:
        return False
    return True


async def _write(call: _Call) -> CallOutcome:
    data = call.arguments.get("data")
    if data is None:
        raise ToolFailure("missing_argument", "action='write' needs the argument 'data'.")
    return await _send(call, data.encode())


async def _submit(call: _Call) -> CallOutcome:
    enter = "\r" if call.process.pty else "\n"
    return await _send(call, ((call.arguments.get("data") or "") + enter).encode())


async def _close(call: _Call) -> CallOutcome:
    process = call.process
    if process.ended_at is not None:
        raise ToolFailure("process_exited", "Process has already finished.", status="already_exited")
    if process.stdin is not None:
        try:
            await process.stdin.aclose()
        except OSError as error:
            if isinstance(error, ExecError) or not await _has_ended(process):
                if process.pty and isinstance(error, TimeoutError):
                    message = "The process does not read its input, so its end could not be sent. Kill the process."
                    raise ToolFailure("not_read", message, status="error") from None
                raise
    return CallOutcome({"status": "ok", "message": "EOF sent" if process.pty else "stdin closed"})


_ACTIONS: MappingProxyType[str, Callable[[_Call], Awaitable[CallOutcome]]] = MappingProxyType(
    {"poll": _poll, "log": _log, "wait": _wait, "kill": _kill, "write": _write, "submit": _submit, "close": _close}
)
