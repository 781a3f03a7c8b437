"""A background process of a slot: its streams, its output by offset, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import anyio
from anyio.abc import ByteSendStream

from hermes_exec.channel import Conversation, RemoteError
from hermes_exec.channel.channel import CANCEL_WAIT_S
from hermes_exec.channel.encoding import from_wire
from hermes_exec.checks import validate_offset, validate_signal, validate_size, validate_timeout
from hermes_exec.errors import ConfigError, ProtocolError, SlotClosed
from hermes_exec.results import KillReceipt, RunResult
from hermes_exec.slot.answers import integer, number, optional_receipt, receipt, text
from hermes_exec.slot.command import pty_size, terminal_size
from hermes_exec.slot.receiver import Receiver
from hermes_exec.slot.run_result import run_result
from hermes_exec.slot.scope import TRANSPORT_ERRORS, SlotScope

STREAMS: Mapping[str, int] = {"stdout": 1, "stderr": 2}
READ_BYTES = 1 << 20
FOLLOW_WINDOW = 1 << 18
CLOSE_S = 30.0
SPAWN_S = 60.0


class Process:
    """A background process of a slot. It ends by itself, by `kill`, or when the slot is reset or released.

    `stdin`, `stdout` and `stderr` are anyio byte streams. While `stdout` is read from its beginning, the process waits
    for its reader. Without a reader the output is kept in a log, which `output` reads by offset: at least the last
    `output_limit_bytes` of each stream, or the last 256 KiB if the slot's disk has no room. `stdin` is None unless it
    was requested; a PTY has no `stderr`.

    A slot remembers the 64 processes that ended last, except those whose `aclose` was called; calls on others raise
    ProcessLookupError. `started_at` and `ended_at` are seconds since the epoch. `ended_at`, `exit_code`, `stdout_bytes`
    and `stderr_bytes` (the numbers of bytes written) are from the last `wait` or listing. `age_s` is its running time
    by a monotonic clock. `tag` is a word of the caller's.
    """

    def __init__(
        self,
        scope: SlotScope,
        process: str,
        pid: int,
        *,
        command: str,
        started_at: float,
        tag: str | None = None,
        stdin: bool = False,
        pty: bool = False,
        cwd: str | None = None,
    ) -> None:
        self.id = process
        self.pid = pid
        self.command = command
        self.cwd = cwd
        self.tag = tag
        self.pty = pty
        self.started_at = started_at
        self.ended_at: float | None = None
        self.exit_code: int | None = None
        self.stdout_bytes = 0
        self.stderr_bytes = 0
        self._began = time.monotonic()
        self._scope = scope
        self.stdin: ProcessInput | None = ProcessInput(scope, process) if stdin or pty else None
        self.stdout = ProcessOutput(scope, process, "stdout")
        self.stderr: ProcessOutput | None = None if pty else ProcessOutput(scope, process, "stderr")

    def __repr__(self) -> str:
        state = "running" if self.ended_at is None else f"exit code {self.exit_code}"
        return f"<Process {self.id} pid={self.pid} {state}: {self.command[:60]!r}>"

    @property
    def age_s(self) -> float:
        """Seconds from its start to now, or to its end."""
        return (time.monotonic() - self._began) if self.ended_at is None else self.ended_at - self.started_at

    @classmethod
    def from_entry(cls, scope: SlotScope, entry: Mapping[str, Any]) -> Process:
        """Return a handle for an entry of `proc.list`."""
        tag = entry.get("tag")
        process = cls(
            scope,
            text(entry, "process"),
            integer(entry, "pid"),
            command=from_wire(entry.get("command"), "command"),
            started_at=number(entry, "started_at"),
            tag=tag if isinstance(tag, str) and tag else None,
            stdin=entry.get("stdin") is not False,
            pty=entry.get("pty") is True,
            cwd=None if entry.get("cwd") is None else from_wire(entry["cwd"], "cwd"),
        )
        process.stdout_bytes = integer(entry, "stdout_bytes")
        process.stderr_bytes = integer(entry, "stderr_bytes")
        process._began -= number(entry, "age_s")
        if entry.get("ended_at") is not None:
            process.ended_at = number(entry, "ended_at")
        if isinstance(ended := entry.get("exit"), dict):
            process.exit_code = integer(ended, "exit_code", least=-(2**31))
        return process

    async def wait(self, timeout_s: float | None = None) -> RunResult:
        """Wait for the end of the process and return its result, without the output, which `output` reads.

        Raises:
            TimeoutError: If it still runs after `timeout_s` seconds (0 only checks; None waits forever).
            SlotClosed: If the slot was released or reset.
        """
        if timeout_s != 0 or isinstance(timeout_s, bool):
            timeout_s = validate_timeout(timeout_s)
        params = {"process": self.id, "timeout_s": timeout_s}
        grace_s = None if timeout_s is None else timeout_s + 5.0
        answer = await self._scope.call("proc.wait", params, timeout_s=grace_s)
        ended = answer.get("exit")
        if ended is None:
            raise TimeoutError(f"process {self.id} still runs after {timeout_s} s")
        if not isinstance(ended, dict):
            raise ProtocolError("the sandbox sent an exit of a wrong type")
        result = run_result(_drop_output(ended), {}, merged=False, request_id=None)
        self.exit_code = result.exit_code
        self.stdout_bytes, self.stderr_bytes = _total_bytes(ended, "stdout"), _total_bytes(ended, "stderr")
        if self.ended_at is None:
            self.ended_at = self.started_at + result.duration_s
        if ended.get("disk_nearly_full") is True:
            await self._scope.note_full_disk()
        return result

    async def signal(self, number: int) -> None:
        """Send a signal to the process and its process group, not to descendants in groups of their own.

        Raises:
            ConfigError: If it is not a signal number.
            ProcessLookupError: If the process has ended.
        """
        params = {"process": self.id, "signal": validate_signal(number)}
        await self._scope.call("proc.signal", params, timeout_s=30)

    async def kill(self) -> KillReceipt:
        """End the process and its descendants: TERM, 0.5 s, KILL. No effect if it has ended."""
        return await _kill(self._scope, {"process": self.id})

    async def aclose(self) -> None:
        """End the process, as `kill`, if it still runs, and free its output. May be called more than once.

        The slot forgets the process: `slot.spawned` does not list it, and later calls raise ProcessLookupError.
        Processes that it started, and left when it ended by itself, go on.
        """
        if self._scope.closed is not None:
            return
        try:
            answer = await self._scope.call("proc.forget", {"process": self.id}, timeout_s=CLOSE_S)
            self._scope.check_receipt(optional_receipt(answer.get("killed")))
            for stream in (self.stdin, self.stdout, self.stderr):
                if stream is not None:
                    await stream.aclose()
        except (ProcessLookupError, SlotClosed):
            return

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of its terminal.

        Raises:
            ConfigError: If it has no terminal, or the size is invalid.
        """
        if not self.pty:
            raise ConfigError("only a process with pty=True has a size")
        await self._scope.call("proc.resize", {"process": self.id, **terminal_size(rows, cols)}, timeout_s=30)

    async def output(
        self, offset: int = 0, *, stream: Literal["stdout", "stderr"] = "stdout", limit_bytes: int = READ_BYTES
    ) -> tuple[bytes, int]:
        """Return at most `limit_bytes` of output from `offset` on, and the next offset; does not wait.

        A negative offset counts from the end. If the log no longer has the bytes, it starts with the oldest that it
        has: the data begin at `next_offset - len(data)`.
        """
        if stream not in STREAMS:
            raise ConfigError(f"stream must be 'stdout' or 'stderr', not {stream!r}")
        limit_bytes, offset = validate_size(limit_bytes, "limit_bytes"), validate_offset(offset, "offset")
        params = {"process": self.id, "stream": STREAMS[stream], "offset": offset, "limit": limit_bytes}
        with self._scope.cancel_scope():
            async with self._scope.conversation("proc.read", params) as conversation:
                answer, pieces = await conversation.collect()
        data = b"".join(pieces.get(1, ()))
        following = integer(answer, "next_offset")
        if len(data) > limit_bytes or following < len(data):
            raise ProtocolError("the sandbox sent more of a log than requested")
        return data, following


def follow(process: Process, stream: Literal["stdout", "stderr"], offset: int) -> ProcessOutput:
    """Return the output of a stream from `offset` on, as it comes."""
    return ProcessOutput(process._scope, process.id, stream, offset)


async def kill_started(process: Process, since_s: float) -> KillReceipt:
    """End the processes that `process` has started at `since_s` or later, but not itself.

    `since_s` is in seconds after the boot of the sandbox's kernel.
    """
    return await _kill(process._scope, {"process": process.id, "since_s": since_s})


async def _kill(scope: SlotScope, params: Mapping[str, Any]) -> KillReceipt:
    answer = await scope.call("proc.kill", params, timeout_s=30)
    killed = receipt(answer.get("killed"))
    scope.check_receipt(killed)
    return killed


async def start(
    scope: SlotScope,
    params: dict[str, Any],
    command: str,
    *,
    stdin: bool,
    pty: bool | tuple[int, int] | None,
    tag: str | None,
) -> Process:
    """Start a process from validated params; `command` is its display form.

    A process that starts after the caller was cancelled is ended.
    """
    size = pty_size(pty)
    params["stdin"] = bool(stdin) or size is not None
    if size is not None:
        params["pty"] = size
    if tag is not None:
        params["tag"] = tag

    async def end(on_unclaimed: dict[str, Any]) -> None:
        process = text(on_unclaimed, "process")
        await scope.channel.call("proc.kill", {"process": process}, timeout_s=CANCEL_WAIT_S)

    answer = await scope.call("proc.spawn", params, timeout_s=SPAWN_S, on_unclaimed=end)
    started_at = answer.get("started_at")
    return Process(
        scope,
        text(answer, "process"),
        integer(answer, "pid"),
        command=command,
        started_at=float(started_at) if isinstance(started_at, int | float) else time.time(),
        tag=tag,
        stdin=bool(stdin),
        pty=size is not None,
    )


def _drop_output(ended: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in ended.items() if name not in ("stdout", "stderr", "merged", "segments")}


def _total_bytes(ended: Mapping[str, Any], name: str) -> int:
    kept = ended.get(name)
    return integer(kept, "total") if isinstance(kept, dict) else 0


class ProcessInput(ByteSendStream):
    """Standard input of a process. `send` returns when the process's pipe has the bytes; `aclose` is end of file.

    Raises anyio.BrokenResourceError if the process has closed its input or ended.
    """

    def __init__(self, scope: SlotScope, process: str) -> None:
        self._scope, self._process = scope, process
        self._closed = False
        self._held: Conversation | None = None

    def hold(self) -> None:
        """Make `send` return while the bytes are in transit; it then waits only if the process is a window behind.

        Many small messages then cost half as much. The `send` of another handle waits until this one is closed.
        """
        # Not the obvious code: see docs/why-not-obvious.md ("Messages on one held conversation").
        if self._held is None:
            self._scope.check()
            params = {"slot": self._scope.slot, "process": self._process}
            self._held = self._scope.channel.begin("proc.write", params, FOLLOW_WINDOW)

    async def send(self, item: bytes) -> None:
        """Write bytes, waiting while the process does not read. If it is cancelled, some of them may be written."""
        self._check(item)
        if self._held is not None:
            await self._scope.send(self._held, item)
        elif await self.send_within(item) < memoryview(item).nbytes:
            raise anyio.BrokenResourceError

    async def send_within(self, item: bytes, timeout_s: float | None = None) -> int:
        """Write bytes for at most `timeout_s` seconds, and return how many the process's pipe accepted.

        The rest is dropped. Not available after `hold`.

        Raises:
            TimeoutError: If the runner does not report the number.
        """
        self._check(item)
        try:
            with self._scope.cancel_scope():
                async with self._scope.conversation("proc.write", {"process": self._process}) as conversation:
                    with anyio.move_on_after(timeout_s):
                        await conversation.send(item)
                        await conversation.end()
                        await conversation.response()
                    if not conversation.answered:
                        await conversation.cancel()
                        with anyio.fail_after(CLOSE_S):
                            await conversation.response()
                    return integer(conversation.result(), "written")
        except (BrokenPipeError, ConfigError) as error:  # another handle has closed its input
            raise anyio.BrokenResourceError from error

    def _check(self, item: object) -> None:
        if not isinstance(item, bytes | bytearray | memoryview):
            raise ConfigError(f"the input of a process is bytes, not {type(item).__name__}")
        if self._closed:
            raise anyio.ClosedResourceError

    def send_nowait(self, item: bytes) -> bool:
        """Write bytes after `hold`, if that needs no waiting. Return False, with nothing written, otherwise."""
        if self._held is None or self._closed or self._scope.closed is not None:
            return False
        return self._held.send_nowait(item)

    async def _drain(self, held: Conversation) -> None:
        """Wait until all sent bytes are written, unless the process stops reading."""
        try:
            with anyio.move_on_after(CLOSE_S):
                await held.end()
                await held.response()
        except RemoteError:
            return
        except TRANSPORT_ERRORS as error:
            await self._scope.fail(error)

    async def aclose(self) -> None:
        """Close the input: the process sees end of file. May be called more than once.

        A terminal in raw mode, or without an end-of-file character (`stty eof undef`), cannot show it.
        """
        if self._closed:
            return
        self._closed = True
        if self._scope.closed is None:
            try:
                if self._held is not None:
                    await self._drain(self._held)
                await self._scope.call("proc.close_stdin", {"process": self._process}, timeout_s=CLOSE_S)
            except (BrokenPipeError, ProcessLookupError):
                return


class ProcessOutput(Receiver):
    """Standard output or error of a process, from its first byte (or `offset`, or the oldest that is kept) to its end.

    `lost_bytes` counts bytes that were dropped before reading began. With a `delimiter` (the byte that ends each
    message of the process), set before the first `receive`, a short message arrives as one piece however it was
    written.
    """

    def __init__(self, scope: SlotScope, process: str, stream: Literal["stdout", "stderr"], offset: int = 0) -> None:
        super().__init__(scope)
        self._process, self._stream, self._offset = process, stream, offset
        self.lost_bytes = 0
        self.delimiter = b""

    def _begin(self) -> Conversation:
        stream = STREAMS[self._stream]
        params = {"slot": self._scope.slot, "process": self._process, "stream": stream, "offset": self._offset}
        if self.delimiter:
            params["delimiter"] = ord(self.delimiter)
        return self._scope.channel.begin("proc.follow", params, FOLLOW_WINDOW)

    def _end(self, result: dict[str, Any]) -> None:
        self.lost_bytes = integer(result, "lost_bytes")

    async def deliver(self, sink: Callable[[bytes], bool]) -> None:
        """Let the event loop pass output to `sink`, after a first `receive`: this avoids waking a task for each piece.

        It ends when `sink` returns False, or on an event that only `receive` reports. Exceptions of `sink` are raised
        here.
        """
        # Not the obvious code: see docs/why-not-obvious.md ("Data without waking a task").
        if self._conversation is not None and not (self._rest or self._ended or self._closed):
            with self._scope.cancel_scope():
                await self._conversation.deliver(sink)
