"""Byte streams for httpcore2 on asyncio's own transports.

Not the obvious code: see docs/why-not-obvious.md ("Own byte streams below httpcore2").
"""

from __future__ import annotations

import asyncio
import asyncio.trsock
import select
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import cast

import anyio
import httpcore2

_MOST_UNREAD, _MOST_UNSENT = 256 << 10, 64 << 10
"""Bytes from which on a stream reads no more, or sends what it has."""
_NEXT_ADDRESS_S = 0.25
_LAST_CHUNK = b"0\r\n\r\n"
"""The end of a chunked answer, which is not compared exactly: it only ends a wait."""


def network_backend() -> httpcore2.AsyncNetworkBackend | None:
    """Return the backend for the running event loop. None: httpcore2's own (trio, and event loops of others)."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return SocketBackend() if isinstance(loop, asyncio.BaseEventLoop) else None


class SocketBackend(httpcore2.AsyncNetworkBackend):
    """Opens TCP connections in an event loop of asyncio."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address of a host that answers."""
        loop = asyncio.get_running_loop()
        with _connection_errors(), anyio.fail_after(timeout):
            transport, buffer = await loop.create_connection(_Buffer, host, port, happy_eyeballs_delay=_NEXT_ADDRESS_S)
        return SocketStream(transport, buffer)


class SocketStream(httpcore2.AsyncNetworkStream):
    """A TCP or TLS connection.

    Writes are collected until the next read, so that the head of a request and its body are one packet. Reads and
    writes have no time limit of their own: the scope around the request has one.
    """

    def __init__(self, transport: asyncio.Transport, buffer: _Buffer) -> None:
        self._transport, self._buffer = transport, buffer
        self._unsent: list[bytes] = []

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return everything that has arrived, or wait for the next bytes. b"" is the end of the stream."""
        self._send()
        return await self._buffer.read()

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write bytes. They are sent with the next read, or when they are many."""
        if buffer:  # asyncio of Python 3.12 and newer would try to send an empty piece without end
            self._unsent.append(buffer)
        if sum(map(len, self._unsent)) > _MOST_UNSENT:
            if self._transport.is_closing():
                raise httpcore2.WriteError("the server closed the connection")
            self._send()
            await self._buffer.drain()

    async def aclose(self) -> None:
        """Close the connection at once."""
        self._unsent.clear()
        self._transport.abort()
        await asyncio.sleep(0)  # the event loop closes the socket in its next turn

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """Return a TLS stream on this connection."""
        loop = asyncio.get_running_loop()
        try:
            with _connection_errors(), anyio.fail_after(timeout):
                transport = await loop.start_tls(
                    self._transport, self._buffer, ssl_context, server_hostname=server_hostname
                )
        except BaseException:
            self._transport.abort()
            raise
        self._buffer.connection_made(cast(asyncio.Transport, transport))
        return SocketStream(cast(asyncio.Transport, transport), self._buffer)

    def collect(self, seconds: float) -> None:
        """Let bytes that arrive wait so long for more, or for the end of a chunked answer, before they are read."""
        self._buffer.delay_s = seconds

    def get_extra_info(self, info: str) -> object:
        """Return `ssl_object`, or whether the stream `is_readable`: an idle connection that is has been closed."""
        if info == "is_readable":
            return self._buffer.is_readable() or _is_readable(self._transport.get_extra_info("socket"))
        return self._transport.get_extra_info(info)

    def _send(self) -> None:
        if self._unsent:
            if not self._transport.is_closing():
                self._transport.writelines(self._unsent)
            self._unsent.clear()


class _Buffer(asyncio.Protocol):
    """The bytes of a connection that have arrived and have not been read."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self._pieces: list[bytes] = []
        self._unread = 0
        self._ended, self._paused = False, False
        self._error: Exception | None = None
        self._news: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        while not self._pieces and not self._ended:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        if self._pieces:
            content = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces.clear()
            self._unread = 0
            if self._paused:
                self._paused = False
                self._transport.resume_reading()
            return content
        if self._error is not None:
            raise httpcore2.ReadError(str(self._error)) from self._error
        return b""

    async def drain(self) -> None:
        """Wait until most of what was written is sent."""
        if self._room is not None:
            await self._room

    def is_readable(self) -> bool:
        return bool(self._pieces) or self._ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._unread += len(data)
        if self._unread > _MOST_UNREAD and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        if self._news is None:
            return
        if not self.delay_s or self._paused or data.endswith(_LAST_CHUNK):
            self._wake()
        elif len(self._pieces) == 1:
            asyncio.get_running_loop().call_later(self.delay_s, self._wake)

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended, self._error = True, exc
        self._wake()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def _wake(self) -> None:
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)


@contextmanager
def _connection_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise httpcore2.ConnectTimeout(str(error)) from error
    except OSError as error:
        raise httpcore2.ConnectError(str(error)) from error


def _is_readable(connected: asyncio.trsock.TransportSocket | None) -> bool:
    """Return whether a socket has bytes or its end, even if the event loop has not noticed yet."""
    descriptor = -1 if connected is None else connected.fileno()
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
