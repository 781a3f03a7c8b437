"""A Python program in the slot that can call the toolbox: its directory, start and end."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Self

import anyio

from hermes_exec.errors import ExecError
from hermes_exec.tools.call.budget import result_path
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.os_errors import translate_os_errors
from hermes_exec.tools.code import stubs
from hermes_exec.tools.code.call_server import ToolCallServer
from hermes_exec.tools.code.output import LOG_BYTES

if TYPE_CHECKING:
    from hermes_exec.results import KillReceipt, RunResult
    from hermes_exec.slot.network import SlotListener
    from hermes_exec.slot.process import Process
    from hermes_exec.tools.state.tool_state import ToolState

NO_PYTHON_EXIT_CODE = 127
# Unbuffered, so that output printed before a timeout or a kill is part of the result.
_START = (
    "hermes_python=$(command -v python3 || command -v python) || {{ echo {absent} >&2; exit 127; }}; "
    'PYTHONPATH="$PWD{directory}${{PYTHONPATH:+:$PYTHONPATH}}" exec "$hermes_python" -u {program}'
)


class Program:
    """A Python program that can call tools, in a directory of its own in the slot's tmp.

    Entering the async context manager starts it. Leaving it ends the program and everything that it started, and
    removes the directory; `killed` is then the receipt.
    """

    def __init__(self, state: ToolState, name: str, text: str, *, strict: bool = False) -> None:
        self.state, self.name, self.text, self.strict = state, name, text, strict
        self.directory = f"{state.slot.tmp.rstrip('/')}/hermes-code-{secrets.token_hex(6)}"
        assert state.call_tool is not None
        self.server = ToolCallServer(state.call_tool, frozenset(state.code_tools), state.options.code_max_calls)
        self.killed: KillReceipt | None = None
        self.listener: SlotListener = state.slot.listen(f"{self.directory}/socket")
        self._absent = "no-python-" + secrets.token_hex(8)
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        """The process, once it was started."""
        assert self._process is not None
        return self._process

    async def start(self) -> None:
        """Create the directory, listen, and start the program.

        It starts from the session's state, or (`strict`) in its own directory with the slot's environment.
        """
        state, files = self.state, self.state.slot.files
        try:
            with translate_os_errors(self.directory):
                for name, text in (("hermes_tools.py", stubs.module_text(state.code_tools)), (self.name, self.text)):
                    await files.write_bytes(f"{self.directory}/{name}", text.encode("utf-8", "surrogatepass"))
                await self.listener.__aenter__()
            await self._spawn()
        except BaseException:
            await self.aclose()
            raise

    async def _spawn(self) -> None:
        env = {
            "HERMES_FIGURES": result_path(self.state.slot, f"figure-{secrets.token_hex(3)}"),
            "HERMES_TOOLS_SOCKET": self.listener.path,
            "HERMES_TOOLS_TOKEN": self.server.token,
            "MPLBACKEND": "Agg",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONIOENCODING": "utf-8",
        }
        state = self.state
        if self.strict:
            text = _START.format(absent=self._absent, directory="", program=self.name)
            self._process = await state.slot.spawn(text, cwd=self.directory, env=env, output_limit_bytes=LOG_BYTES)
            return
        text = _START.format(
            absent=self._absent, directory=f":{self.directory}", program=f"{self.directory}/{self.name}"
        )
        async with state.shell() as session:
            self._process = await session.spawn(text, cwd=state.return_directory, env=env, output_limit_bytes=LOG_BYTES)

    async def is_python_missing(self, result: RunResult) -> bool:
        """Return whether the program ended because there is no Python."""
        if result.exit_code != NO_PYTHON_EXIT_CODE:
            return False
        stderr, _ = await self.process.output(stream="stderr")
        return stderr.decode("utf-8", "replace").strip() == self._absent

    def missing_python(self) -> ToolFailure:
        """Return the error for a slot without Python."""
        others = "the terminal tool" if "terminal" in self.state.tools else "other tools"
        return ToolFailure(
            "no_python", f"This machine has no Python (neither python3 nor python). Use {others} instead."
        )

    async def end(self) -> None:
        """End the program and everything that it started."""
        with anyio.CancelScope(shield=True):
            if self._process is not None and self.killed is None:
                try:
                    self.killed = await self._process.kill()
                except ExecError:
                    return  # the program ends with the slot

    async def aclose(self) -> None:
        """End the program, stop listening and remove the directory."""
        await self.end()
        with anyio.CancelScope(shield=True), anyio.move_on_after(10):
            try:
                await self.listener.__aexit__(None, None, None)
                await self.state.slot.files.remove(self.directory, recursive=True, missing_ok=True)
            except (ExecError, OSError):
                return

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()
