"""Terminals of a sandbox, as NeMo Gym uses them since 0.6: `sandbox.pty.create()` and `sandbox.pty.exec()`."""

from __future__ import annotations

import signal as signals
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Protocol, Self, TypeVar

import anyio
from anyio.abc import ByteReceiveStream
from anyio.from_thread import BlockingPortal
from nemo_gym.sandbox.providers import base

from hermes_exec import ConfigError, ExecError, Process, Slot

T = TypeVar("T")
TERMINAL_ERROR: type[Exception] = getattr(base, "SandboxPtyError", RuntimeError)


class TerminalSpec(Protocol):
    """The request for a terminal: `SandboxPtySpec` of NeMo Gym."""

    command: str | None
    cwd: str | None
    env: Mapping[str, str] | None
    rows: int
    cols: int
    user: str | int | None
    pty: bool


class Terminal:
    """A process in a slot with a terminal, or with pipes. It ends at `close`, or with the slot.

    Every method raises `SandboxPtyError` if the slot is lost.
    """

    def __init__(self, portal: BlockingPortal, process: Process) -> None:
        self.session_id = process.id
        self.mode: str | None = "pty" if process.pty else "pipe"
        self._portal, self._process = portal, process
        self._closed = self._ended = False

    @property
    def closed(self) -> bool:
        """Whether it can run nothing more: it was closed, or its process has ended."""
        return self._closed or self._ended

    async def read(self, *, timeout_s: float | None = None) -> bytes:
        """Return the next output: everything from a terminal, stdout from pipes. Empty at the end of the process.

        Raises:
            TimeoutError: If nothing comes within `timeout_s` seconds.
        """
        data = await self._call(partial(_receive, self._process.stdout, timeout_s))
        self._ended = self._ended or not data
        return data

    async def read_stderr(self, *, timeout_s: float | None = None) -> bytes:
        """Return the next output of stderr. A terminal has none: the answer is empty, at the end of the process.

        Raises:
            TimeoutError: If nothing comes within `timeout_s` seconds.
        """
        if self._process.stderr is None:
            await self.wait_exit(timeout_s=timeout_s)
            return b""
        return await self._call(partial(_receive, self._process.stderr, timeout_s))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    async def write(self, data: bytes) -> None:
        """Send bytes to the input of the process."""
        assert self._process.stdin is not None
        await self._call(partial(self._process.stdin.send, data))

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of the terminal."""
        await self._call(partial(self._process.resize, rows, cols))

    async def send_signal(self, signal: str) -> None:
        """Send a signal by its name, such as `SIGTERM`, to the process and its process group.

        Raises:
            ValueError: If there is no signal of this name.
        """
        if signal not in signals.Signals.__members__:
            raise ValueError(f"there is no signal {signal!r}: use a name such as 'SIGTERM'")
        await self._call(partial(self._process.signal, signals.Signals[signal]))

    async def wait_exit(self, *, timeout_s: float | None = None) -> int:
        """Wait for the end of the process and return its exit code.

        Raises:
            TimeoutError: If it still runs after `timeout_s` seconds.
        """
        result = await self._call(partial(self._process.wait, timeout_s))
        self._ended = True
        return result.exit_code

    async def close(self) -> None:
        """End the process with everything that it started. Has no effect the second time."""
        if not self._closed:
            self._closed = True
            await self._call(self._process.aclose)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self._portal.call_async(work)
        except ConfigError:
            raise
        except (ExecError, ProcessLookupError) as error:
            raise TERMINAL_ERROR(str(error)) from error
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise TERMINAL_ERROR("the process of the terminal has ended, or the terminal is closed") from error


async def open_terminal(portal: BlockingPortal, slot: Slot, spec: TerminalSpec) -> Terminal:
    """Start a command, or the shell of the slot, with a terminal or pipes."""
    spawn = partial(
        slot.spawn,
        [slot.shell or "sh"] if spec.command is None else spec.command,
        stdin=True,
        pty=(spec.rows, spec.cols) if spec.pty else None,
        cwd=spec.cwd,
        env=spec.env,
        user=None if spec.user is None else str(spec.user),
    )
    return Terminal(portal, await portal.call_async(spawn))


async def _receive(stream: ByteReceiveStream, timeout_s: float | None) -> bytes:
    with anyio.fail_after(timeout_s):
        try:
            return await stream.receive()
        except anyio.EndOfStream:
            return b""
