"""The execute_code tool: Python in the slot whose tool calls are executed by the toolbox."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import anyio

from hermes_exec.errors import OutputLimitExceeded
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.live_output import LiveOutput
from hermes_exec.tools.call.results import PNG, CallOutcome
from hermes_exec.tools.code import output
from hermes_exec.tools.code.call_server import ToolCallServer
from hermes_exec.tools.code.kernel import Kernel
from hermes_exec.tools.code.program import Program
from hermes_exec.tools.state.tool_state import ToolState

if TYPE_CHECKING:
    from hermes_exec.results import KillReceipt, RunResult
    from hermes_exec.slot.run import OnOutput
    from hermes_exec.slot.slot import Slot

OUTPUT_LOST = "The output of the code is lost: the slot's processes printed more than the log holds, or cut the log."
MAX_FIGURES, MAX_FIGURE_BYTES = 4, 4 << 20


async def execute_code(state: ToolState, arguments: dict[str, Any], on_output: OnOutput | None = None) -> CallOutcome:
    """Run the code in the mode of the toolbox's options; see `ToolOptions.code_mode`."""
    code = arguments["code"]
    if not code.strip() or "\0" in code:
        raise ToolFailure("bad_value", "'code' contains a NUL byte." if code.strip() else "'code' is empty.")
    if state.options.code_mode == "kernel":
        async with state.code_lock:
            return await _run_in_kernel(state, code, on_output)
    return await _run_program(state, code, on_output)


async def _run_program(state: ToolState, code: str, on_output: OnOutput | None) -> CallOutcome:
    started = time.monotonic()
    options = state.options
    async with Program(state, "program.py", code, strict=options.code_mode == "strict") as program:
        live = LiveOutput(program.process, on_output, {"stdout": 0, "stderr": 0})

        async def wait_for_end() -> RunResult | None:
            result = None
            with anyio.move_on_after(options.code_timeout_s):
                result = await live.during(program.process.wait)
            await program.end()
            return result

        result = await program.server.serve_during(program.listener, wait_for_end)
        if result is not None and await program.is_python_missing(result):
            raise program.missing_python()
        if result is not None:
            await live.finish({"stdout": program.process.stdout_bytes, "stderr": program.process.stderr_bytes})
        out = await output.read_output(state.slot, program.process, "stdout", options.code_output_chars)
        err = await output.read_output(state.slot, program.process, "stderr", options.code_error_chars)
    duration_s = time.monotonic() - started
    exit_code, oom = (None, False) if result is None else (result.exit_code, result.oom_killed)
    limit_s, killed = options.code_timeout_s, program.killed
    return _build_outcome(program.server, out, err, duration_s, killed, exit_code=exit_code, oom=oom, limit_s=limit_s)


async def _run_in_kernel(state: ToolState, code: str, on_output: OnOutput | None) -> CallOutcome:
    started = time.monotonic()
    options = state.options
    kernel = state.kernel if isinstance(state.kernel, Kernel) else None
    end_reason = await kernel.end_reason() if kernel is not None else state.kernel_loss
    state.kernel_loss = None
    if end_reason is not None:
        await state.close_kernel()
    if kernel is None or end_reason is not None:
        kernel = Kernel(state)
        await kernel.start()
        state.kernel = kernel
    try:
        run = await kernel.run(code, options.code_timeout_s, on_output)
    except BaseException:  # the code may still run
        await state.close_kernel()
        state.kernel_loss = "the call before was given up"
        raise
    out = await output.read_output(state.slot, kernel.process, "stdout", options.code_output_chars, *run.stdout)
    err = await output.read_output(state.slot, kernel.process, "stderr", options.code_error_chars, *run.stderr)
    if run.state_lost is not None:
        await state.close_kernel()
    duration_s = time.monotonic() - started
    exit_code = None if run.timed_out else 0 if run.ok else 1
    limit_s = options.code_timeout_s
    killed = kernel.program.killed or run.killed
    outcome = _build_outcome(kernel.server, out, err, duration_s, killed, exit_code=exit_code, limit_s=limit_s)
    if run.images:
        outcome.data["images"] = run.images
        if options.native_images:
            outcome = outcome._replace(images=await _read_figures(state.slot, run.images))
    notes = [
        f"The variables of earlier code were gone before this code ran: {end_reason}." if end_reason else "",
        f"All variables are lost: {run.state_lost}." if run.state_lost else "",
    ]
    if any(notes):
        outcome.data["warning"] = " ".join(filter(None, notes))
    return outcome


async def _read_figures(slot: Slot, paths: list[str]) -> tuple[bytes, ...]:
    """Read the first figures for the model. Files that are too large or not PNG images are left out."""
    images = []
    for path in paths[:MAX_FIGURES]:
        with contextlib.suppress(OSError, OutputLimitExceeded):
            image = await slot.files.read_bytes(path, limit_bytes=MAX_FIGURE_BYTES)
            if image.startswith(PNG):
                images.append(image)
    return tuple(images)


def _build_outcome(
    callbacks: ToolCallServer,
    out: output.StreamText,
    err: output.StreamText,
    duration_s: float,
    killed: KillReceipt | None,
    *,
    exit_code: int | None,
    oom: bool = False,
    limit_s: float,
) -> CallOutcome:
    """Build the outcome of a run. Without an exit code, the run timed out."""
    text, error, kind = out.text, None, None
    if exit_code is None:
        status, error, kind = "timeout", f"The code was ended after {limit_s:g} s.", "timeout"
    elif exit_code == 0 and out.lost:
        status, error, kind = "error", OUTPUT_LOST, "output_lost"
    elif exit_code == 0:
        status = "success"
    else:
        status, kind = "error", "out_of_memory" if oom else "exit_code"
        last_line = err.text.strip().rpartition("\n")[2]  # the exception of a traceback
        error = last_line or f"The code ended with exit code {exit_code}."
    if err.text:
        text += f"{'' if not text or text.endswith(chr(10)) else chr(10)}--- stderr ---\n{err.text}"
    data: dict[str, object] = {"status": status, "output": text}
    if exit_code is not None:
        data["exit_code"] = exit_code
    data["tool_calls_made"] = callbacks.call_count
    if callbacks.refused_count:
        data["tool_calls_refused"] = f"{callbacks.refused_count}, over the limit of {callbacks.max_calls}: not made"
    if callbacks.records:
        data["tool_calls"] = [
            f"{call.tool} {call.duration_s:.3f} s{'' if call.ok else ' failed'}" for call in callbacks.records
        ]
    data["duration_seconds"] = round(duration_s, 3)
    if out.omitted_bytes:
        data |= {
            "stdout_truncated": True,
            "stdout_bytes_captured": out.shown_bytes,
            "stdout_bytes_total": out.total_bytes,
            "stdout_bytes_omitted": out.omitted_bytes,
        }
    if killed is not None and killed.found:
        data["processes_ended"] = killed.found
    if error is not None:
        data["error"] = error
    return CallOutcome(data, kind)
