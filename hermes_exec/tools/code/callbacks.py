"""The calls that a program in the slot makes: taken from a socket in the slot, carried out by the toolbox."""

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

LONGEST_REQUEST = 4 << 20
LONGEST_TOKEN = 64
MOST_STRUCTURE = 256 << 10
"""How many bytes of a request may stand outside of its strings: each three of them can be an object in memory."""
KERNEL = b"kernel"
"""What a program sends after the token that is a kernel."""
REQUEST_S = 30.0
AT_ONCE = 8


@dataclass(frozen=True)
class CallMade:
    """One call of a program: the tool, how long it took, and whether it did what was asked."""

    tool: str
    duration_s: float
    ok: bool


@dataclass
class Callbacks:
    """Serves the calls of the programs of one execute_code: at most `max_calls`, of `tools` alone, with the token.

    A connection begins with a line that is the token. `kernel` is the connection of a program that said it is a kernel.
    """

    call: CallTool
    tools: frozenset[str]
    max_calls: int
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    made: list[CallMade] = field(default_factory=list)
    asked: int = 0
    begun: int = 0
    over_limit: int = 0
    kernel: tuple[Connection, BufferedByteReceiveStream] | None = None
    kernel_came: anyio.Event = field(default_factory=anyio.Event)

    def begin(self) -> None:
        """Count anew: other code runs from now on."""
        self.asked = self.begun = self.over_limit = 0
        self.made.clear()

    async def serving(self, listener: SlotListener, work: Callable[[], Awaitable[R]]) -> R:
        """Do `work`, and take connections meanwhile, one call each. Raises what the work raises, and the error of a
        call that met the end of the slot, which ends the work.
        """
        async with PlainTaskGroup() as tasks:
            tasks.start_soon(self._serve, listener, tasks)
            result = await work()
            tasks.cancel_scope.cancel()
        return result

    async def _serve(self, listener: SlotListener, tasks: PlainTaskGroup) -> None:
        limiter = anyio.Semaphore(AT_ONCE)
        while True:
            await limiter.acquire()
            connection = await listener.accept()
            tasks.start_soon(self._one, connection, limiter)

    async def _one(self, connection: Connection, limiter: anyio.Semaphore) -> None:
        try:
            await self._answer(connection)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the program has gone away
        finally:
            limiter.release()
            if self.kernel is None or self.kernel[0] is not connection:
                with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                    await connection.aclose()

    async def _answer(self, connection: Connection) -> None:
        line, lines = b"", BufferedByteReceiveStream(connection)
        with anyio.move_on_after(REQUEST_S), suppress(anyio.IncompleteRead, anyio.DelimiterNotFound):
            if not hmac.compare_digest(await lines.receive_until(b"\n", LONGEST_TOKEN), self.token.encode()):
                return
            line = await lines.receive_until(b"\n", LONGEST_REQUEST)
        if not line:
            return
        if line == KERNEL:
            if self.kernel is None:
                self.kernel = (connection, lines)
                self.kernel_came.set()
            return
        await connection.send(to_json(await self._carried(line)).encode() + b"\n")

    async def _carried(self, line: bytes) -> dict[str, object]:
        if self.asked >= self.max_calls:
            self.over_limit += 1
            return {
                "result": {"error": f"Tool call limit reached ({self.max_calls}). No more tool calls in this program."}
            }
        self.asked += 1
        try:
            request = parsed(line)
        except ValueError as error:
            return {"refused": str(error)}
        tool, arguments = request.get("tool"), request.get("arguments")
        if not isinstance(tool, str) or not isinstance(arguments, dict):
            return {"refused": "the arguments are not an object" if isinstance(tool, str) else "the tool has no name"}
        if tool not in self.tools:
            there = ", ".join(sorted(self.tools)) or "none"
            return {"refused": f"a program cannot call the tool {tool[:100]!r}; there are: {there}"}
        self.begun += 1
        started = time.monotonic()
        result = await self.call(tool, arguments)
        self.made.append(CallMade(tool, time.monotonic() - started, result.ok))
        return {"result": result.data}


def parsed(line: bytes) -> dict[str, Any]:
    """The object that a program wrote as a line of JSON; ValueError for anything else, before much memory is taken."""
    if is_structure_above(line, MOST_STRUCTURE):
        raise ValueError(f"a request has at most {MOST_STRUCTURE} bytes outside of its strings: pass data in a file")
    try:
        request = json.loads(str(line, "utf-8"))
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise ValueError("a request is one line of JSON, an object")
    return request
