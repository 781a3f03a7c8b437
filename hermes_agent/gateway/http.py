"""HTTP/1.1 on a byte stream, the side of the server, with h11."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import anyio
import h11
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint

from hermes_agent.gateway.request import GatewayError
from hermes_exec.errors import ExecError

MAX_HEAD_BYTES = 64 << 10
MAX_BODY_BYTES = 64 << 20
_READ_AHEAD_BYTES = 64 << 10
_SMALL_PIECE_BYTES = 256
_LINGER_S = 5.0
"""How long the rest of a refused request is discarded, so that the client reads the refusal before its writes fail."""
STREAM_ERRORS = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError, ExecError)
"""Errors that end a byte stream: of sockets, and of connections of a slot."""


class Disconnected(Exception):
    """Raised when the client has closed the connection, or the connection broke."""


class BodyMemory:
    """The bytes that all bodies of requests under way may take together.

    Args:
        limit_bytes: The most bytes.
    """

    def __init__(self, limit_bytes: int = 2 * MAX_BODY_BYTES) -> None:
        self._limit, self._used = limit_bytes, 0

    def take(self, count: int) -> None:
        """Count bytes of a body. Raises GatewayError (503) if there are too many."""
        if self._used + count > self._limit:
            raise GatewayError(503, "too many bytes of other requests are under way", kind="server_error", retry=True)
        self._used += count

    def give_back(self, count: int) -> None:
        """Free the bytes of a body."""
        self._used -= count


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The head of a request.

    Attributes:
        method: The method, in the client's spelling.
        path: The target without its query string.
        headers: The headers by their lowercase names. Of equal names the last one counts.
    """

    method: str
    path: str
    headers: Mapping[str, str]


class HttpConnection:
    """One connection of a client. Requests are answered one after the other.

    `read` has to run in a task of its own: it reads ahead while a request is answered, and so finds out that the client
    has disconnected.

    Args:
        stream: The connection.
        memory: The bound of the bodies of several connections.
    """

    def __init__(self, stream: ByteStream, memory: BodyMemory | None = None) -> None:
        self._stream, self._memory = stream, memory or BodyMemory()
        self._http = h11.Connection(h11.SERVER, MAX_HEAD_BYTES)
        self._method = ""
        self._read_ahead: list[bytes] = []
        self._read_ahead_bytes = self._body_bytes = 0
        self._arrived = self._taken = anyio.Event()
        self._scope: anyio.CancelScope | None = None
        self.gone = False
        """Whether the client has closed its side."""

    async def read(self) -> None:
        """Read until the client closes its side."""
        try:
            while True:
                data = await self._stream.receive()
                self._read_ahead.append(data)
                self._read_ahead_bytes += len(data)
                self._arrived.set()
                while self._read_ahead_bytes > _READ_AHEAD_BYTES:
                    self._taken = anyio.Event()
                    await self._taken.wait()
        except STREAM_ERRORS:
            self.gone = True
            self._arrived.set()
            if self._scope is not None:
                self._scope.cancel()

    @contextmanager
    def cancel_when_gone(self) -> Iterator[None]:
        """Cancel the block when the client disconnects. Raises Disconnected after that."""
        try:
            with anyio.CancelScope() as scope:
                self._scope = scope
                if self.gone:
                    scope.cancel()
                yield
        finally:
            self._scope = None
        if scope.cancelled_caught:
            raise Disconnected

    async def next_request(self) -> HttpRequest | None:
        """Return the head of the next request, None if the client has closed the connection.

        Raises:
            GatewayError: If it is not HTTP/1.1, or too large (431). The connection cannot be used any more.
            Disconnected: If the client disconnects in the middle of a head.
        """
        event = await self._next_event()
        if not isinstance(event, h11.Request):
            return None
        path = event.target.decode("latin-1").partition("?")[0]
        if not path.startswith("/"):  # a client that takes this server for a proxy
            path = "/" + path.partition("://")[2].partition("/")[2]
        self._method = event.method.decode("latin-1")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        return HttpRequest(self._method, path, headers)

    async def read_body(self, request: HttpRequest) -> bytes:
        """Return the body of the request.

        Raises:
            GatewayError: If it is above 64 MiB (413), the bodies of all connections are too large (503), or its framing
                is broken (400).
            Disconnected: If the client disconnects before the end of the body.
        """
        if _content_length(request) > MAX_BODY_BYTES:
            raise _body_too_large()
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        body = bytearray()  # a list of the pieces would take many times their bytes: a client chooses their size
        while isinstance(event := await self._next_event(), h11.Data):
            self._memory.take(len(event.data))
            self._body_bytes += len(event.data)
            if self._body_bytes > MAX_BODY_BYTES:
                raise _body_too_large()
            body += event.data
            if len(event.data) < _SMALL_PIECE_BYTES:
                await checkpoint()  # or many clients that send chunks of a byte keep the event loop to themselves
        return bytes(body)

    async def respond(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a whole response. Raises Disconnected.

        If the request was not read to its end, the response asks the client to close the connection.
        """
        framing = {"content-length": str(len(body))}
        if not self._skip_arrived_body():
            framing["connection"] = "close"
        response = h11.Response(status_code=status, headers=list({**headers, **framing}.items()))
        await self._send(response, h11.Data(data=b"" if self._method == "HEAD" else body), h11.EndOfMessage())

    async def begin_response(self, headers: Mapping[str, str], data: bytes = b"") -> None:
        """Send the head of a response of unknown length with status 200, and its first bytes. Raises Disconnected."""
        await self._send(h11.Response(status_code=200, headers=list(headers.items())), h11.Data(data=data))

    async def send(self, data: bytes) -> None:
        """Send a piece of a response that `begin_response` began. Raises Disconnected."""
        await self._send(h11.Data(data=data))

    async def end_response(self, data: bytes) -> None:
        """Send the last piece of a response that `begin_response` began. Raises Disconnected."""
        await self._send(h11.Data(data=data), h11.EndOfMessage())

    async def finish_request(self) -> bool:
        """Prepare for the next request. Return False if the connection has to be closed instead."""
        self._free_body()
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        if self._http.their_state in (h11.SEND_BODY, h11.ERROR):
            with anyio.move_on_after(_LINGER_S):
                while await self._take():
                    pass
        return False

    async def aclose(self) -> None:
        """Close the connection, also if the caller is cancelled."""
        self._free_body()
        with anyio.move_on_after(_LINGER_S, shield=True), suppress(*STREAM_ERRORS):
            await self._stream.aclose()

    def _free_body(self) -> None:
        self._memory.give_back(self._body_bytes)
        self._body_bytes = 0

    def _skip_arrived_body(self) -> bool:
        """Discard the part of the request that has arrived. Return whether the request is complete."""
        while self._http.their_state is h11.SEND_BODY:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError:
                break
            if event is h11.NEED_DATA:
                break
        return self._http.their_state not in (h11.SEND_BODY, h11.ERROR)

    async def _next_event(self) -> object:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                if self.gone:
                    raise Disconnected from error
                raise GatewayError(error.error_status_hint, f"this is not HTTP/1.1: {error}") from error
            if event is not h11.NEED_DATA:
                return event
            self._http.receive_data(await self._take())

    async def _take(self) -> bytes:
        """Return the bytes that were read ahead, and wait for some. b"": the client has closed its side."""
        while not self._read_ahead:
            if self.gone:
                return b""
            self._arrived = anyio.Event()
            await self._arrived.wait()
        data = b"".join(self._read_ahead)
        self._read_ahead.clear()
        self._read_ahead_bytes = 0
        self._taken.set()
        return data

    async def _send(self, *events: h11.Event) -> None:
        data = b"".join(self._http.send(event) or b"" for event in events)
        try:
            await self._stream.send(data)
        except STREAM_ERRORS as error:
            raise Disconnected from error


def _content_length(request: HttpRequest) -> float:
    """Return the length of the body that the head states. h11 has refused all but one number, and too many digits."""
    return float(request.headers.get("content-length", 0))


def _body_too_large() -> GatewayError:
    return GatewayError(413, f"the body is larger than {MAX_BODY_BYTES >> 20} MiB", "request_too_large")
