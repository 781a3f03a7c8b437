"""A DevTools endpoint on this host's loopback for a browser in a slot: what Playwright's client connects to.

The browser speaks the DevTools protocol on a pipe (`--remote-debugging-pipe`: JSON texts, each ended by a NUL byte)
that is the input and output of its process; no port is opened in the slot. The client speaks it over a WebSocket
(RFC 6455).
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

import anyio
from anyio.abc import ByteStream, Listener, SocketAttribute, SocketStream, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import RemoteProtocolError

from hermes_exec.errors import ExecError

if TYPE_CHECKING:
    from hermes_exec.slot.process import Process

logger = logging.getLogger(__name__)
LONGEST_MESSAGE = 256 << 20


class DevToolsEndpoint:
    """Serves one client, which has to know the token in `url`. `ended` is set when the browser's side has closed."""

    def __init__(self, process: Process) -> None:
        self.url = ""
        self.ended = anyio.Event()
        self._process = process
        self._path = f"/{secrets.token_urlsafe(24)}"
        self._taken = False

    async def start(self, tasks: TaskGroup) -> None:
        """Listen, and serve in `tasks` until they are cancelled."""
        assert self._process.stdin is not None
        self._process.stdin.hold()
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
        self.url = f"ws://127.0.0.1:{listener.extra(SocketAttribute.local_port)}{self._path}"
        tasks.start_soon(self._listen, listener)

    async def _listen(self, listener: Listener[SocketStream]) -> None:
        async with listener:
            await listener.serve(self._serve)

    async def _serve(self, client: ByteStream) -> None:
        socket = WSConnection(ConnectionType.SERVER)
        parts: list[str] = []
        try:
            async with client, anyio.create_task_group() as tasks:
                async for data in client:
                    socket.receive_data(data)
                    for event in socket.events():
                        if isinstance(event, TextMessage):
                            parts.append(event.data)
                            if event.message_finished:
                                await self._to_browser("".join(parts))
                                parts.clear()
                        else:
                            await self._control(event, socket, client, tasks)
                tasks.cancel_scope.cancel()
        except* (
            OSError,
            ExecError,
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
            RemoteProtocolError,
        ) as error:
            logger.debug("a DevTools connection ended: %r", error.exceptions)

    async def _control(self, event: Event, socket: WSConnection, client: ByteStream, tasks: TaskGroup) -> None:
        if isinstance(event, Request):
            if event.target != self._path or self._taken:
                await client.send(socket.send(RejectConnection(status_code=403)))
                return
            self._taken = True
            await client.send(socket.send(AcceptConnection()))
            tasks.start_soon(self._from_browser, socket, client)
        elif isinstance(event, CloseConnection | Ping):
            await client.send(socket.send(event.response()))

    async def _to_browser(self, text: str) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send(text.encode() + b"\0")

    async def _from_browser(self, socket: WSConnection, client: ByteStream) -> None:
        said = BufferedByteReceiveStream(self._process.stdout)
        try:
            while True:
                text = await said.receive_until(b"\0", LONGEST_MESSAGE)
                await client.send(socket.send(TextMessage(text.decode("utf-8", "replace"))))
        except (anyio.IncompleteRead, anyio.DelimiterNotFound):
            await client.aclose()
        finally:
            self.ended.set()
