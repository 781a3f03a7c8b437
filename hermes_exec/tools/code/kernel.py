"""A Python process in the slot that keeps its variables between calls of execute_code."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from signal import SIGINT
from typing import TYPE_CHECKING, Any, Literal

import anyio
from anyio.abc import TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream

from hermes_exec.errors import ConfigError, ExecError
from hermes_exec.slot.command import validate_path
from hermes_exec.slot.network import Connection
from hermes_exec.slot.process import kill_started
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.live_output import LiveOutput
from hermes_exec.tools.code import output, stubs
from hermes_exec.tools.code.call_server import parse_object
from hermes_exec.tools.code.program import Program

if TYPE_CHECKING:
    from hermes_exec.results import KillReceipt
    from hermes_exec.slot.process import Process
    from hermes_exec.slot.run import OnOutput
    from hermes_exec.tools.state.tool_state import ToolState

START_S = 30.0
INTERRUPT_S = 3.0
MAX_ANSWER_BYTES = 1 << 20
MAX_BOOT_S = 1e12


@dataclass
class KernelRun:
    """The result of running a piece of code.

    `stdout` and `stderr` are its ranges in the logs (start, end; None: to the end of the log). `state_lost` is the
    reason if the variables are lost. `killed` is the receipt of the processes of code that timed out.
    """

    stdout: tuple[int, int | None]
    stderr: tuple[int, int | None]
    ok: bool = False
    timed_out: bool = False
    images: list[str] = field(default_factory=list)
    state_lost: str | None = None
    killed: KillReceipt | None = None


class Kernel:
    """One such Python process, until `aclose`."""

    def __init__(self, state: ToolState) -> None:
        self.program = Program(state, "kernel.py", stubs.program_text("kernel.py"))
        self.server = self.program.server
        self._connection: Connection | None = None
        self._lines: BufferedByteReceiveStream | None = None
        self._read: dict[Literal["stdout", "stderr"], int] = {"stdout": 0, "stderr": 0}

    @property
    def process(self) -> Process:
        """The process in the slot."""
        return self.program.process

    async def start(self) -> None:
        """Start the process from the session's state.

        Raises:
            ToolFailure: If there is no Python, or it does not start.
        """
        await self.program.start()
        try:
            await self.server.serve_during(self.program.listener, self._wait_for_connection)
            if self.server.kernel is None:
                raise await self._start_failure()
            self._connection, self._lines = self.server.kernel
        except BaseException:
            await self.program.aclose()
            raise

    async def _wait_for_connection(self) -> None:
        with anyio.move_on_after(START_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._cancel_at_end, tasks)
                await self.server.kernel_connected.wait()
                tasks.cancel_scope.cancel()

    async def _cancel_at_end(self, tasks: TaskGroup) -> None:
        try:
            await self.process.wait()
        except ExecError:
            return  # `serve_during` raises it
        tasks.cancel_scope.cancel()

    async def _start_failure(self) -> ToolFailure:
        try:
            result = await self.process.wait(0)
        except TimeoutError:
            return ToolFailure("timeout", f"Python did not start within {START_S:g} s. Try again.")
        if await self.program.is_python_missing(result):
            return self.program.missing_python()
        stderr, _ = await self.process.output(-2000, stream="stderr")
        return ToolFailure("exit_code", f"Python could not be started: {stderr.decode('utf-8', 'replace').strip()}")

    async def end_reason(self, within_s: float = 0) -> str | None:
        """Wait up to `within_s` for the process to end; return the reason, or None while it runs."""
        try:
            result = await self.process.wait(within_s)
        except TimeoutError:
            return None
        return f"the Python that kept them ended with exit code {result.exit_code}"

    async def run(self, code: str, timeout_s: float, on_output: OnOutput | None = None) -> KernelRun:
        """Run a piece of code.

        After `timeout_s` it is interrupted, and the processes that it started are ended. If the interrupt fails, the
        process and its variables are lost.
        """
        self.server.begin()
        mark = f"\0end-{secrets.token_hex(8)}\0"
        line = json.dumps({"code": code, "mark": mark}).encode() + b"\n"
        timed_out = False
        live = LiveOutput(self.process, on_output, self._read, mark.encode())

        async def get_answer() -> dict[str, Any] | None:
            nonlocal timed_out
            with anyio.move_on_after(timeout_s):
                return await self._ask(line)
            timed_out = True
            with anyio.move_on_after(INTERRUPT_S):
                await self._interrupt()
                return await self._ask(b"")
            return None

        answer = await self.server.serve_during(self.program.listener, lambda: live.during(get_answer))
        starts = dict(self._read)
        if answer is None or not isinstance(answer.get("ok"), bool):
            if answer is not None:
                loss = "the code wrote to the socket of its Python"
            elif timed_out:
                loss = "it did not let itself be interrupted"
            else:
                loss = await self.end_reason(10) or "Python closed its socket"
            return KernelRun((starts["stdout"], None), (starts["stderr"], None), timed_out=timed_out, state_lost=loss)
        killed = await self._end_children(answer.get("began_s")) if timed_out else None
        ends: dict[Literal["stdout", "stderr"], int] = {}
        for name in self._read:
            ends[name], self._read[name] = await output.find_mark(self.process, name, mark.encode())
        await live.finish(ends)
        return KernelRun(
            (starts["stdout"], ends["stdout"]),
            (starts["stderr"], ends["stderr"]),
            ok=answer["ok"],
            timed_out=timed_out,
            images=_image_paths(answer.get("images")),
            killed=killed,
        )

    async def _end_children(self, since_s: object) -> KillReceipt | None:
        """End the processes that code has started since `since_s`, which the sandbox reported."""
        if isinstance(since_s, float) and 0 < since_s < MAX_BOOT_S:
            return await kill_started(self.process, since_s)
        return None

    async def _interrupt(self) -> None:
        try:
            await self.process.signal(SIGINT)
        except ProcessLookupError:
            return

    async def _ask(self, line: bytes) -> dict[str, Any] | None:
        """Send a line and return the answer: None if the socket was closed, empty if the answer is invalid."""
        assert self._connection is not None
        assert self._lines is not None
        try:
            if line:
                await self._connection.send(line)
            answer = await self._lines.receive_until(b"\n", MAX_ANSWER_BYTES)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.IncompleteRead):
            return None
        except anyio.DelimiterNotFound:
            return {}
        try:
            return parse_object(answer)
        except ValueError:
            return {}

    async def aclose(self) -> None:
        """End the process and everything that it started; `program.killed` is the receipt."""
        if self._connection is not None:
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await self._connection.aclose()
        await self.program.aclose()


def _image_paths(images: object) -> list[str]:
    """Return the items of `images` that are valid paths."""
    paths = []
    for path in images if isinstance(images, list) else ():
        if isinstance(path, str):
            with suppress(ConfigError, OSError):
                validate_path(path, "path")
                paths.append(path)
    return paths
