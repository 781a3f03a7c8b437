"""A websocket on a descriptor: opened by blocking calls, its frames made and read without I/O (`wsproto`)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping

import anyio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Message, RejectConnection, Request, TextMessage
from wsproto.utilities import ProtocolError

from hermes_exec.aio.bridge import open_tls_tunnel
from hermes_exec.aio.streams import READ_BYTES


class WebSocketRefused(OSError):
    """Raised when a server does not open a websocket: ``status`` is what HTTP says instead."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}".strip())
        self.status = status


class WebSocket:
    """The client's side of one connection, whose descriptor is somebody else's. Only one thread may read, and one write
    at a time.
    """

    def __init__(self) -> None:
        self._connection = WSConnection(ConnectionType.CLIENT)
        self._text = ""

    def request(self, host: str, target: str, headers: Mapping[str, str]) -> bytes:
        """What opens it."""
        extra = [(name.encode(), value.encode()) for name, value in headers.items()]
        return self._connection.send(Request(host=host, target=target, extra_headers=extra))

    def refusal_status(self, answer: bytes) -> int:
        """The status of a refusal, 0 when the headers in `answer` are of none."""
        self._connection.receive_data(answer)
        event = next(iter(self._connection.events()), None)
        if isinstance(event, AcceptConnection):
            return 0
        return event.status_code if isinstance(event, RejectConnection) else 500

    def message(self, text: str) -> bytes:
        """The frame of a message; anyio.BrokenResourceError when the other side has closed."""
        try:
            return self._connection.send(TextMessage(data=text))
        except ProtocolError as error:
            raise anyio.BrokenResourceError from error

    def messages(self, data: bytes) -> Iterator[str]:
        """The messages that are whole with what came.

        Raises:
            anyio.BrokenResourceError: the other side closes, and says why, or sends nonsense.
        """
        try:
            self._connection.receive_data(data)
            for event in self._connection.events():
                if isinstance(event, Message):
                    self._text += event.data if isinstance(event.data, str) else event.data.decode()
                    if event.message_finished:
                        text, self._text = self._text, ""
                        yield text
                elif isinstance(event, CloseConnection):
                    raise anyio.BrokenResourceError(event.reason or f"closed with code {int(event.code)}")
        except (ProtocolError, UnicodeDecodeError) as error:
            raise anyio.BrokenResourceError(f"this is no websocket: {error}") from error


def open_websocket(
    address: tuple[str, int],
    target: str,
    headers: Mapping[str, str],
    tls: ssl.SSLContext | None = None,
    timeout_s: float = 30.0,
) -> tuple[int, WebSocket]:
    """A websocket and its descriptor, which the caller owns: that of a tunnel where the connection is encrypted.

    Raises:
        WebSocketRefused: no websocket was opened.
        OSError: nobody answers.
    """
    connection = socket.create_connection(address, timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            connection = tls.wrap_socket(connection, server_hostname=address[0])
        websocket = WebSocket()
        connection.sendall(websocket.request(f"{address[0]}:{address[1]}", target, headers))
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):  # and not a byte of what follows
            if not (byte := connection.recv(1)):
                raise ConnectionError("the connection was closed")
            answer += byte
        if status := websocket.refusal_status(answer):
            raise WebSocketRefused(status, connection.recv(READ_BYTES).decode("utf-8", "replace"))
        connection.settimeout(None)
        return (
            open_tls_tunnel(connection) if isinstance(connection, ssl.SSLSocket) else connection.detach()
        ), websocket
    except BaseException:
        connection.close()
        raise
