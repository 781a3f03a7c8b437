"""Serving one client over standard input and output."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio.to_thread

if TYPE_CHECKING:
    from hermes_mcp.server import SlotServer

_READ_BYTES = 1 << 16


async def serve_stdio(server: SlotServer) -> None:
    """Serve the client until it closes standard input. While serving, this process's own standard input is empty."""
    from mcp.server.stdio import stdio_server

    descriptor = os.dup(0)
    with open(os.devnull, "rb") as nothing:  # noqa: ASYNC230 - it does not wait
        os.dup2(nothing.fileno(), 0)
    lines = cast("Any", _read_lines(descriptor))
    async with server.running(), stdio_server(stdin=lines) as (incoming, outgoing):
        await server.mcp.run(incoming, outgoing, server.mcp.create_initialization_options())


async def _read_lines(descriptor: int) -> AsyncIterator[str]:
    """Yield the lines of a descriptor. A cancelled read does not wait for the next line, unlike anyio's own files."""
    rest = b""
    while data := await anyio.to_thread.run_sync(partial(os.read, descriptor, _READ_BYTES), abandon_on_cancel=True):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")
