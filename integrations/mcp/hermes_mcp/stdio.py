"""Serving one client over standard input and output."""

from __future__ import annotations

import json
import os
import select
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from hermes_mcp.server import SlotServer

LAST_ANSWERS_S = 5.0
"""Longest wait for a client that has closed standard input and does not read its last answers."""
_READ_BYTES = 1 << 16


async def serve_stdio(server: SlotServer) -> None:
    """Serve the client until it closes standard input.

    While serving, this process's own standard input is empty, and its standard output goes to standard error.

    Raises:
        BrokenPipeError: If the client has closed its end of standard output.
    """
    from mcp.server.stdio import stdio_server

    output = _Output(_take(1, os.dup(2)))
    lines = _refuse_invalid(_read_lines(_take(0, os.open(os.devnull, os.O_RDONLY))), output)
    with anyio.CancelScope() as scope:
        async with server.running(), stdio_server(cast("Any", lines), cast("Any", output)) as (incoming, outgoing):
            await server.mcp.run(incoming, outgoing, server.mcp.create_initialization_options())
            scope.deadline = anyio.current_time() + LAST_ANSWERS_S


def _take(standard: int, instead: int) -> int:
    """Return a new descriptor of a standard stream, whose number then leads elsewhere."""
    taken = os.dup(standard)
    os.dup2(instead, standard)
    os.close(instead)
    return taken


async def _read_lines(descriptor: int) -> AsyncIterator[str]:
    """Yield the lines of a descriptor.

    No thread waits for them, as in files of anyio: this process could not end before the client sends the next line.
    """
    begun: list[bytes] = []
    while True:
        await _wait(anyio.wait_readable, descriptor)
        data = os.read(descriptor, _READ_BYTES)
        first, *others = data.split(b"\n")
        begun.append(first)
        for line in others:
            yield b"".join(begun).decode("utf-8", "replace")
            begun = [line]
        if not data:
            break
    if any(begun):
        yield b"".join(begun).decode("utf-8", "replace")


async def _refuse_invalid(lines: AsyncIterator[str], output: _Output) -> AsyncIterator[str]:
    """Yield the lines, and answer requests that mcp cannot read: it ignores them, and their client would wait for ever.

    Such are strings with half of a surrogate pair, which clients in JavaScript write.
    """
    import mcp_types as types
    from pydantic import ValidationError

    async for line in lines:
        try:
            types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError as error:
            if (number := _find_id(line)) is not None:
                reason = {"code": types.PARSE_ERROR, "message": f"Parse error: {error.errors()[0]['msg']}"}
                await output.write(json.dumps({"jsonrpc": "2.0", "id": number, "error": reason}) + "\n")
        else:
            yield line


def _find_id(line: str) -> str | int | None:
    with suppress(ValueError, RecursionError):
        message = json.loads(line)
        number = message.get("id") if isinstance(message, dict) and "method" in message else None
        return number if isinstance(number, str | int) else None
    return None


class _Output:
    """A file of text, for the same reason without a thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = anyio.Lock()

    async def write(self, text: str) -> None:
        """Write the whole text."""
        rest = memoryview(text.encode("utf-8", "replace"))
        async with self._lock:
            while rest:
                await _wait(anyio.wait_writable, self._descriptor)
                rest = rest[os.write(self._descriptor, rest[: select.PIPE_BUF]) :]  # a pipe that is ready takes so much

    async def flush(self) -> None:
        """Do nothing: nothing is buffered."""


async def _wait(until_ready: Callable[[int], Awaitable[None]], descriptor: int) -> None:
    """Wait until a pipe, socket or terminal is ready. Other files always are, and event loops refuse them."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor):
        await until_ready(descriptor)
    else:
        await anyio.lowlevel.checkpoint()
