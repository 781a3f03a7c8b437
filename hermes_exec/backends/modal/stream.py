"""The byte stream of a process in a sandbox: its stdin and stdout, copied between Modal's client and a socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modal.container_process import ContainerProcess

MAX_REQUEST_BYTES = 1 << 20
"""Most bytes sent in one request. Each request waits for its answer, so small ones are slow over a long distance."""
FIRST = 0
"""First byte of a runner's output, because a frame is shorter than 16 MiB."""
CLOSE_TIMEOUT_S = 5.0


class ModalStreams:
    """The open streams of one backend, kept here because an event loop holds its tasks weakly. Belongs to the client's
    loop.
    """

    def __init__(self) -> None:
        self._carriers: set[asyncio.Task[None]] = set()

    async def open(self, process: ContainerProcess[bytes]) -> socket.socket:
        """Return the driver's end of a stream, for any event loop.

        The client library resumes by offset when its own connection breaks. The stream ends when the library gives up.
        """
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs, limit=MAX_REQUEST_BYTES)
        carrier = asyncio.create_task(_carry(process, reader, writer))
        self._carriers.add(carrier)
        carrier.add_done_callback(self._carriers.discard)
        return ours


async def _carry(process: ContainerProcess[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async def copy_output() -> None:
        started = False
        async for data in process.stdout:
            if not started and data[0] != FIRST:
                return  # text of an engine that could not start the process
            started = True
            writer.write(data)
            await writer.drain()

    async def copy_input() -> None:
        while data := await reader.read(MAX_REQUEST_BYTES):
            process.stdin.write(data)
            await process.stdin.drain.aio()

    async def end() -> None:
        process.stdin.write_eof()
        await process.stdin.drain.aio()

    both = [asyncio.create_task(copy_output()), asyncio.create_task(copy_input())]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        writer.close()
        for task in both:
            task.cancel()
        # The process ends with its input, even if nothing else ends it.
        with contextlib.suppress(Exception):
            await asyncio.wait_for(end(), CLOSE_TIMEOUT_S)
        await asyncio.gather(*both, return_exceptions=True)
