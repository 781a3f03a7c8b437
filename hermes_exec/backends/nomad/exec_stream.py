"""Nomad's exec: a websocket whose messages carry the input and output of a program in a task."""

from __future__ import annotations

import base64
import contextlib
import json
import select
import socket
import ssl
import threading
from typing import Any

import anyio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Message, RejectConnection, Request, TextMessage

from hermes_exec.aio.bridge import bridged
from hermes_exec.aio.streams import READ_BYTES
from hermes_exec.backends.engine_stream import EngineStream

MESSAGE_BYTES = 1 << 20
"""Most input in one message."""
END_OF_INPUT = TextMessage(data='{"stdin":{"close":true}}')


class ExecRefused(OSError):
    """Raised when Nomad does not open a websocket: ``status`` is what HTTP says instead."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status} {said}".strip())
        self.status = status


class ExecStream(EngineStream):
    """Owns the connection. Reads give stdout alone; what is written goes to stdin.

    Nomad says ``exited`` of programs that run, and with code 0 of those that do not: its word ends the stream, and
    nothing else follows from it.
    """

    def __init__(self, fd: int, websocket: WSConnection, *, frames: bool) -> None:
        super().__init__(fd, frames=frames)
        self._websocket = websocket
        self._order = threading.Lock()
        self._held = b""
        self._text = ""

    def send_nowait(self, data: bytes) -> None:
        """See ``FdStream.send_nowait``."""
        with self._order:
            data, self._held = self._held + data, b""
            for start in range(0, len(data), MESSAGE_BYTES):
                text = base64.b64encode(data[start : start + MESSAGE_BYTES]).decode("ascii")
                super().send_nowait(self._websocket.send(TextMessage(data=f'{{"stdin":{{"data":"{text}"}}}}')))

    def queue_nowait(self, data: bytes) -> None:
        """See ``FdStream.queue_nowait``."""
        with self._order:
            self._held += data

    def demultiplex(self, data: bytes) -> bytes:
        """See ``EngineStream.demultiplex``; anyio.BrokenResourceError with what Nomad says when it closes."""
        self._websocket.receive_data(data)
        parts: list[bytes] = []
        for event in self._websocket.events():
            if isinstance(event, Message):
                self._text += event.data if isinstance(event.data, str) else event.data.decode()
                if event.message_finished:
                    text, self._text = self._text, ""
                    if (part := _stdout(text)) is not None:
                        parts.append(part)
                    elif not any(parts):
                        raise anyio.EndOfStream
            elif isinstance(event, CloseConnection) and not any(parts):
                raise anyio.BrokenResourceError(f"Nomad ended the stream: {event.reason or int(event.code)}")
        return b"".join(parts)

    def close_now(self) -> None:
        """See ``FdStream.close_now``. The program is told: of a connection that is only dropped it hears nothing."""
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError), self._order:
            super().send_nowait(self._websocket.send(END_OF_INPUT))
        super().close_now()


def _stdout(text: str) -> bytes | None:
    """What a message has of it; None when it says that the program has ended."""
    try:
        message: dict[str, Any] = json.loads(text)
        if message.get("exited"):
            return None
        return base64.b64decode((message.get("stdout") or {}).get("data") or "")
    except (ValueError, AttributeError, TypeError) as error:
        raise anyio.BrokenResourceError(f"Nomad sent what is no message: {text[:200]}") from error


def open_exec(
    address: tuple[str, int], tls: ssl.SSLContext | None, target: str, token: str | None, timeout_s: float, frames: bool
) -> ExecStream:
    """A stream to the program that `target` names; `frames` says that it is the runner. Blocking.

    Raises:
        ExecRefused: no websocket was opened.
        OSError: nobody answers.
    """
    connection = socket.create_connection(address, timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            connection = tls.wrap_socket(connection, server_hostname=address[0])
        websocket = WSConnection(ConnectionType.CLIENT)
        headers = [(b"X-Nomad-Token", token.encode())] if token else []
        host = f"{address[0]}:{address[1]}"
        connection.sendall(websocket.send(Request(host=host, target=target, extra_headers=headers)))
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):  # and not a byte of what follows
            if not (byte := connection.recv(1)):
                raise OSError("the connection was closed")
            answer += byte
        websocket.receive_data(answer)
        event = next(iter(websocket.events()), None)
        if not isinstance(event, AcceptConnection):
            status = event.status_code if isinstance(event, RejectConnection) else 0
            raise ExecRefused(status, connection.recv(READ_BYTES).decode("utf-8", "replace"))
        connection.settimeout(None)
        return ExecStream(_descriptor(connection), websocket, frames=frames)
    except BaseException:
        connection.close()
        raise


def _descriptor(connection: socket.socket) -> int:
    """Of the connection itself or, where it is encrypted, of a tunnel to it."""
    if not isinstance(connection, ssl.SSLSocket):
        return connection.detach()
    connection.setblocking(False)
    lock = threading.Lock()  # OpenSSL takes one call at a time

    def wait(events: int) -> None:
        waiting = select.poll()
        waiting.register(connection.fileno(), events)
        waiting.poll()

    def read() -> bytes:
        while True:
            with lock, contextlib.suppress(ssl.SSLWantReadError):
                return connection.recv(READ_BYTES)
            wait(select.POLLIN)

    def write(data: bytes) -> None:
        while data:
            with lock, contextlib.suppress(ssl.SSLWantWriteError):
                data = data[connection.send(data) :]
                continue
            wait(select.POLLOUT)

    def close() -> None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    return bridged(read, write, close).detach()
