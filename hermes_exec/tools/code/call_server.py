"""Tool calls of a program in the slot: received on a socket in the slot, executed by the toolbox."""

from __future__ import annotations

import hmac
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from hermes_exec.aio.tasks import PlainTaskGroup
from hermes_exec.slot.network import Connection, SlotListener
from hermes_exec.tools.call.json_size import is_structure_above
from hermes_exec.tools.call.results import CallTool, to_json

R = TypeVar("R")

MAX_REQUEST_BYTES = 4 << 20
MAX_TOKEN_BYTES = 64
MAX_STRUCTURE_BYTES = 256 << 10
"""The maximum size of a request outside of its strings, where three bytes can become an object in memory."""
KERNEL_REQUEST = b"kernel"
"""The line after the token by which a program identifies itself as a kernel."""
REQUEST_S = 30.0
MAX_CONNECTIONS = 8


@dataclass(frozen=True)
class CodeCallRecord:
    """A finished call of a program: the tool, its duration, and whether it succeeded."""

    tool: str
    duration_s: float
    ok: bool


@dataclass
class ToolCallServer:
    """Serves the tool calls of one execute_code: at most `max_calls`, only `tools`, and only with the token.

    The first line of a connection is the token. `kernel` is the connection of a program that identified itself as a
    kernel.
    """

    call: CallTool
    tools: frozenset[str]
    max_calls: int
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    records: list[CodeCallRecord] = field(default_factory=list)
    request_count: int = 0
    call_count: int = 0
    refused_count: int = 0
    kernel: tuple[Connection, BufferedByteReceiveStream] | None = None
    kernel_connected: anyio.Event = field(default_factory=anyio.Event)

    def begin(self) -> None:
        """Reset the counts for the next piece of code."""
        self.request_count = self.call_count = self.refused_count = 0
        self.records.clear()

    async def serve_during(self, listener: SlotListener, work: Callable[[], Awaitable[R]]) -> R:
        """Run `work` while accepting connections, one call each, and return its result.

        Exceptions of the work are raised. If the slot ends during a call, its error is raised and the work is
        cancelled.
        """
        async with PlainTaskGroup() as tasks:
            tasks.start_soon(self._serve, listener, tasks)
            result = await work()
            tasks.cancel_scope.cancel()
        return result

    async def _serve(self, listener: SlotListener, tasks: PlainTaskGroup) -> None:
        limiter = anyio.Semaphore(MAX_CONNECTIONS)
        while True:
            await limiter.acquire()
            connection = await listener.accept()
            tasks.start_soon(self._handle, connection, limiter)

    async def _handle(self, connection: Connection, limiter: anyio.Semaphore) -> None:
        try:
            await self._answer(connection)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the program closed its connection
        finally:
            limiter.release()
            if self.kernel is None or self.kernel[0] is not connection:
                with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                    await connection.aclose()

    async def _answer(self, connection: Connection) -> None:
        line, lines = b"", BufferedByteReceiveStream(connection)
        with anyio.move_on_after(REQUEST_S), suppress(anyio.IncompleteRead, anyio.DelimiterNotFound):
            if not hmac.compare_digest(await lines.receive_until(b"\n", MAX_TOKEN_BYTES), self.token.encode()):
                return
            line = await lines.receive_until(b"\n", MAX_REQUEST_BYTES)
        if not line:
            return
        if line == KERNEL_REQUEST:
            if self.kernel is None:
                self.kernel = (connection, lines)
                self.kernel_connected.set()
            return
        await connection.send(to_json(await self._execute_request(line)).encode() + b"\n")

    async def _execute_request(self, line: bytes) -> dict[str, object]:
        if self.request_count >= self.max_calls:
            self.refused_count += 1
            return {
                "result": {"error": f"Tool call limit reached ({self.max_calls}). No more tool calls in this program."}
            }
        self.request_count += 1
        try:
            request = parse_object(line)
        except ValueError as error:
            return {"refused": str(error)}
        tool, arguments = request.get("tool"), request.get("arguments")
        if not isinstance(tool, str) or not isinstance(arguments, dict):
            return {"refused": "the arguments are not an object" if isinstance(tool, str) else "the tool has no name"}
        if tool not in self.tools:
            names = ", ".join(sorted(self.tools)) or "none"
            return {"refused": f"a program cannot call the tool {tool[:100]!r}; available: {names}"}
        self.call_count += 1
        started = time.monotonic()
        result = await self.call(tool, arguments)
        self.records.append(CodeCallRecord(tool, time.monotonic() - started, result.ok))
        return {"result": result.data}


def parse_object(line: bytes) -> dict[str, Any]:
    """Parse a line of JSON that a program wrote, before it can take much memory.

    Raises:
        ValueError: If the line is not a JSON object, or has too much structure.
    """
    if is_structure_above(line, MAX_STRUCTURE_BYTES):
        raise ValueError(
            f"a request has at most {MAX_STRUCTURE_BYTES} bytes outside of its strings: pass data in a file"
        )
    try:
        request = json.loads(str(line, "utf-8"))
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise ValueError("a request is one line of JSON, an object")
    return request
