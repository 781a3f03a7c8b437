"""A websocket on a descriptor. Blocking calls open it; `wsproto` builds and parses its frames without I/O."""

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
    """Raised when a server does not open a websocket; `status` is the HTTP status of its answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}".strip())
        self.status = status


class WebSocket:
    """The client's side of one connection. The caller owns the descriptor; one thread may read and one may write at a
    time.
    """

    def __init__(self) -> None:
        self._connection = WSConnection(ConnectionType.CLIENT)
        self._text = ""

    def request(self, host: str, target: str, headers: Mapping[str, str]) -> bytes:
        """Return the request that opens the websocket."""
        extra = [(name.encode(), value.encode()) for name, value in headers.items()]
        return self._connection.send(Request(host=host, target=target, extra_headers=extra))

    def refusal_status(self, answer: bytes) -> int:
        """Return the HTTP status of a refusal, or 0 if the headers in `answer` accept the websocket."""
        self._connection.receive_data(answer)
        event = next(iter(self._connection.events()), None)
        if isinstance(event, AcceptConnection):
            return 0
        return event.status_code if isinstance(event, RejectConnection) else 500

    def message(self, text: str) -> bytes:
        """Return the frame of a message.

        Raises:
            anyio.BrokenResourceError: If the other side has closed.
        """
        try:
            return self._connection.send(TextMessage(data=text))
        except ProtocolError as error:
            raise anyio.BrokenResourceError from error

    def messages(self, data: bytes) -> Iterator[str]:
        """Yield the messages that `data` completes.

        Raises:
            anyio.BrokenResourceError: If the other side closes (with its reason) or sends invalid frames.
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
    """Open a websocket and return it with its descriptor, which the caller owns. With TLS this is the descriptor of a
    tunnel.

    Raises:
        WebSocketRefused: If the server refused the websocket.
        OSError: If no server answers.
    """
    connection = socket.create_connection(address, timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            connection = tls.wrap_socket(connection, server_hostname=address[0])
        websocket = WebSocket()
        connection.sendall(websocket.request(f"{address[0]}:{address[1]}", target, headers))
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):  # not one byte more: the frames follow
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
