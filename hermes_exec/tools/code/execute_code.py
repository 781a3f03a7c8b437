"""The execute_code tool: Python in the slot, whose calls of tools come back to the toolbox."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import anyio

from hermes_exec.errors import OutputLimitExceeded
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.results import Outcome
from hermes_exec.tools.code import output
from hermes_exec.tools.code.callbacks import Callbacks
from hermes_exec.tools.code.kernel import Kernel
from hermes_exec.tools.code.program import Program
from hermes_exec.tools.state.tool_state import ToolState

if TYPE_CHECKING:
    from hermes_exec.results import KillReceipt, RunResult
    from hermes_exec.slot.slot import Slot

PNG = b"\x89PNG\r\n\x1a\n"
LOST = "What the code printed is lost: the slot's processes printed more than is kept, or cut its log."
FIGURES_SHOWN, FIGURE_BYTES = 4, 4 << 20


async def execute_code(state: ToolState, arguments: dict[str, Any]) -> Outcome:
    """Run the code in the mode of the toolbox's options; see `ToolOptions.code_mode`."""
    code = arguments["code"]
    if not code.strip() or "\0" in code:
        raise ToolFailure("bad_value", "'code' contains a NUL byte." if code.strip() else "'code' is empty.")
    if state.options.code_mode == "kernel":
        async with state.turn_of_code:
            return await _in_kernel(state, code)
    return await _as_program(state, code)


async def _as_program(state: ToolState, code: str) -> Outcome:
    started = time.monotonic()
    options = state.options
    async with Program(state, "program.py", code, strict=options.code_mode == "strict") as program:

        async def until_it_ends() -> RunResult | None:
            result = None
            with anyio.move_on_after(options.code_timeout_s):
                result = await program.process.wait()
            await program.end()
            return result

        result = await program.callbacks.serving(program.listener, until_it_ends)
        if result is not None and await program.found_no_python(result):
            raise program.no_python()
        out = await output.printed(program.process, "stdout", options.code_output_chars)
        err = await output.printed(program.process, "stderr", options.code_error_chars)
    duration_s = time.monotonic() - started
    exit_code, oom = (None, False) if result is None else (result.exit_code, result.oom_killed)
    limit_s, killed = options.code_timeout_s, program.killed
    return _outcome(program.callbacks, out, err, duration_s, killed, exit_code=exit_code, oom=oom, limit_s=limit_s)


async def _in_kernel(state: ToolState, code: str) -> Outcome:
    started = time.monotonic()
    options = state.options
    kernel = state.kernel if isinstance(state.kernel, Kernel) else None
    lost = await kernel.why_ended() if kernel is not None else state.kernel_lost
    state.kernel_lost = None
    if lost is not None:
        await state.close_kernel()
    if kernel is None or lost is not None:
        kernel = Kernel(state)
        await kernel.start()
        state.kernel = kernel
    try:
        piece = await kernel.run(code, options.code_timeout_s)
    except BaseException:  # what it does now nobody knows
        await state.close_kernel()
        state.kernel_lost = "the call before was given up"
        raise
    out = await output.printed(kernel.process, "stdout", options.code_output_chars, *piece.stdout)
    err = await output.printed(kernel.process, "stderr", options.code_error_chars, *piece.stderr)
    if piece.state_lost is not None:
        await state.close_kernel()
    duration_s = time.monotonic() - started
    exit_code = None if piece.timed_out else 0 if piece.ok else 1
    limit_s = options.code_timeout_s
    killed = kernel.program.killed
    outcome = _outcome(kernel.callbacks, out, err, duration_s, killed, exit_code=exit_code, limit_s=limit_s)
    if piece.images:
        outcome.data["images"] = piece.images
        if options.native_images:
            outcome = outcome._replace(images=await _figures(state.slot, piece.images))
    notes = [
        f"The variables of earlier code were gone before this code ran: {lost}." if lost else "",
        f"All variables are lost: {piece.state_lost}." if piece.state_lost else "",
    ]
    if any(notes):
        outcome.data["warning"] = " ".join(filter(None, notes))
    return outcome


async def _figures(slot: Slot, paths: list[str]) -> tuple[bytes, ...]:
    """The figures that a model is shown: the first ones, of an ordinary size."""
    found = []
    for path in paths[:FIGURES_SHOWN]:
        with contextlib.suppress(OSError, OutputLimitExceeded):
            image = await slot.files.read_bytes(path, limit_bytes=FIGURE_BYTES)
            if image.startswith(PNG):
                found.append(image)
    return tuple(found)


def _outcome(
    callbacks: Callbacks,
    out: output.Printed,
    err: output.Printed,
    duration_s: float,
    killed: KillReceipt | None,
    *,
    exit_code: int | None,
    oom: bool = False,
    limit_s: float,
) -> Outcome:
    """The result in its shape; without an exit code the time was over."""
    text, error, kind = out.text, None, None
    if exit_code is None:
        status, error, kind = "timeout", f"The code was ended after {limit_s:g} s.", "timeout"
    elif exit_code == 0 and out.lost:
        status, error, kind = "error", LOST, "output_lost"
    elif exit_code == 0:
        status = "success"
    else:
        status, kind = "error", "out_of_memory" if oom else "exit_code"
        last_line = err.text.strip().rpartition("\n")[2]  # what a traceback ends with
        error = last_line or f"The code ended with exit code {exit_code}."
    if err.text and exit_code != 0:
        text += f"{'' if not text or text.endswith(chr(10)) else chr(10)}--- stderr ---\n{err.text}"
    data: dict[str, object] = {"status": status, "output": text}
    if exit_code is not None:
        data["exit_code"] = exit_code
    data["tool_calls_made"] = callbacks.begun
    if callbacks.over_limit:
        data["tool_calls_refused"] = f"{callbacks.over_limit}, over the limit of {callbacks.max_calls}: not made"
    if callbacks.made:
        data["tool_calls"] = [
            f"{call.tool} {call.duration_s:.3f} s{'' if call.ok else ' failed'}" for call in callbacks.made
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
    return Outcome(data, kind)
