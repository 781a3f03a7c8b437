"""The terminal tool: one shell session per Toolbox, and background processes of the slot."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hermes_exec.errors import ConfigError, ExecError
from hermes_exec.tools.call.budget import save_output, saved_note
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.os_errors import os_failure
from hermes_exec.tools.call.results import CallOutcome
from hermes_exec.tools.state.tool_state import ToolState
from hermes_exec.tools.state.watch import Watch
from hermes_exec.tools.terminal.ansi import strip_ansi
from hermes_exec.tools.terminal.background import count_running, tail
from hermes_exec.tools.terminal.exit_codes import exit_code_meaning
from hermes_exec.tools.terminal.pty import run_in_pty

if TYPE_CHECKING:
    from hermes_exec.results import RunResult
    from hermes_exec.slot.process import Process
    from hermes_exec.slot.run import OnOutput
    from hermes_exec.slot.session import Session

TIMEOUT_EXIT_CODE = 124
OUT_OF_MEMORY_EXIT_CODE = 137
_DIRECTORY_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors of a working directory that cannot be entered. The command did not run."""
_HEAD_SHARE = 0.4
_REASON_CHARS = 2000
_NOTICE_CONFLICT = "watch_patterns was dropped because notify_on_complete is set; they exclude each other"


async def terminal(state: ToolState, arguments: dict[str, Any], on_output: OnOutput | None = None) -> CallOutcome:
    """Run a command in the session, or start it in the background. No command is refused because of its text."""
    command = arguments["command"]
    if "\0" in command:
        raise ToolFailure("bad_value", "'command' contains a NUL byte.")
    workdir = state.resolve(arguments["workdir"], "workdir") if arguments.get("workdir") else None
    if arguments["background"]:
        async with state.shell() as session:
            return await _start(state, session, command, workdir, arguments)
    timeout_s = arguments.get("timeout") or state.options.terminal_timeout_s
    limit_s = state.options.terminal_max_timeout_s
    if timeout_s > limit_s:
        message = (
            f"A foreground timeout of {timeout_s}s is above the maximum of {limit_s}s. Use background=true (with "
            "notify_on_complete=true) "
            "and the process tool for longer commands, or a timeout within the maximum."
        )
        raise ToolFailure("timeout_too_long", message, output="", exit_code=-1)
    result = await _run(state, command, workdir, timeout_s, on_output, pty=arguments["pty"])
    return await _build_outcome(state, command, result, timeout_s, pty=arguments["pty"])


async def _run(
    state: ToolState, command: str, workdir: str | None, timeout_s: int, on_output: OnOutput | None, *, pty: bool
) -> RunResult:
    """Run a command in the session.

    A `workdir` is for this command only: the next one starts in the directory of the command before.
    """
    limit_bytes = state.options.terminal_output_chars * 4
    async with state.shell() as session:
        with _translate_start_errors(state, workdir):
            cwd = workdir or state.return_directory
            if pty:
                return await run_in_pty(session, command, cwd, timeout_s, on_output, limit_bytes=limit_bytes)
            if workdir is not None:
                state.return_directory = state.cwd
            result = await session.run(
                command,
                timeout_s=timeout_s,
                cwd=cwd,
                merge_stderr=True,
                output_limit_bytes=limit_bytes,
                on_output=on_output,
            )
            if workdir is None:
                state.return_directory = None
            return result


@contextmanager
def _translate_start_errors(state: ToolState, workdir: str | None) -> Iterator[None]:
    """Turn errors of the working directory, and a command that is too long, into ToolFailures inside the block.

    All other mistakes are checked before the block.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, ExecError) or error.errno not in _DIRECTORY_ERRNOS:
            raise
        failure = os_failure(workdir or str(error.filename), error)
        if workdir is None:
            failure.message += f" Nothing was run. The next command starts in {state.slot.workdir}."
            state.return_directory = state.slot.workdir
        failure.fields |= {"output": "", "exit_code": -1}
        raise failure from None
    except ConfigError:
        message = "The command is too long to be sent. Write it to a file with write_file and run that."
        raise ToolFailure("bad_value", message, output="", exit_code=-1) from None


async def _build_outcome(
    state: ToolState, command: str, result: RunResult, timeout_s: int, *, pty: bool
) -> CallOutcome:
    output = await _shorten_output(state, result)
    exit_code, error, kind = result.exit_code, None, None
    if result.timed_out:
        exit_code, kind = TIMEOUT_EXIT_CODE, "timeout"
        output += f"{'' if not output or output.endswith(chr(10)) else chr(10)}[Command timed out after {timeout_s}s]"
    elif result.oom_killed:
        victim = "The command" if exit_code == OUT_OF_MEMORY_EXIT_CODE else "A process of the command"
        error, kind = f"{victim} was killed because the slot ran out of memory.", "out_of_memory"
    elif exit_code != 0:
        kind = "exit_code"
    data: dict[str, object] = {"output": output, "exit_code": exit_code, "error": error}
    meaning = None if result.timed_out else exit_code_meaning(command, exit_code)
    if meaning is not None:
        data["exit_code_meaning"] = meaning
    if result.state_lost is not None:
        data["state_note"] = f"Changes of directory, variables and functions were not kept: {result.state_lost}."
    if pty:
        data["pty_note"] = "Run in a pseudo-terminal; changes of directory, variables and functions were not kept."
    return CallOutcome(data, kind)


async def _shorten_output(state: ToolState, result: RunResult) -> str:
    """Return the output without control sequences, at most `terminal_output_chars` of it.

    A longer output keeps 40 % from its head and 60 % from its tail, with a notice in between.
    """
    text = strip_ansi(result.output)
    limit = state.options.terminal_output_chars
    if len(text) <= limit:
        return text
    head = int(limit * _HEAD_SHARE)
    saved_path = result.spill_path or await save_output(state.slot, text.encode("utf-8", "replace"))
    save_note = saved_note(saved_path, is_whole=bool(result.spill_path) or not result.truncated)
    if result.truncated:
        amount = f"of {result.stdout_total_bytes} bytes"
    else:
        amount = f"{len(text) - limit} chars omitted out of {len(text)} total"
    return f"{text[:head]}\n\n... [OUTPUT TRUNCATED - {amount}{save_note}] ...\n\n{text[len(text) - (limit - head) :]}"


async def _start(
    state: ToolState, session: Session, command: str, workdir: str | None, arguments: dict[str, Any]
) -> CallOutcome:
    if await count_running(state.slot) >= state.options.max_running_processes:
        message = (
            f"{state.options.max_running_processes} background processes are running already. End some with "
            "process(action='kill')."
        )
        raise ToolFailure("too_many_processes", message, output="", exit_code=-1)
    session_id = "proc_" + secrets.token_hex(6)
    with _translate_start_errors(state, workdir):
        process = await session.spawn(
            command,
            cwd=workdir or state.return_directory,
            stdin=True,
            pty=arguments["pty"],
            merge_stderr=not arguments["pty"],
            output_limit_bytes=state.options.process_log_bytes,
            tag=session_id,
        )
    if not process.pid:
        return await _report_failed_start(process)
    notify = arguments["notify_on_complete"]
    patterns = tuple(pattern for pattern in arguments.get("watch_patterns") or () if pattern)
    data: dict[str, object] = {
        "output": "Background process started",
        "session_id": session_id,
        "pid": process.pid,
        "exit_code": 0,
        "error": None,
    }
    if notify:
        data["notify_on_complete"] = True
        if patterns:
            data["watch_patterns_ignored"] = _NOTICE_CONFLICT
            patterns = ()
    elif patterns:
        data["watch_patterns"] = list(patterns)
    else:
        data["hint"] = f"Follow it with process(action='poll', session_id='{session_id}')."
    if notify or patterns:
        state.watches[session_id] = Watch(session_id, command, notify, patterns)
    return CallOutcome(data)


async def _report_failed_start(process: Process) -> CallOutcome:
    """Return the outcome of a process that could not be started and ended with the reason as its output."""
    result = await process.wait()
    output = (await tail(process, _REASON_CHARS)).replace("\r\n", "\n")
    return CallOutcome(
        {"output": output, "exit_code": result.exit_code, "error": "No process was started."}, "exit_code"
    )
