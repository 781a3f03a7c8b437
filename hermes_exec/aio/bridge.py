"""Streams over blocking calls: two threads copy the bytes between a library and a descriptor."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

from hermes_exec.aio.streams import READ_BYTES, FdStream

logger = logging.getLogger(__name__)


def bridge_calls(read: Callable[[], bytes], write: Callable[[bytes], object], close: Callable[[], object]) -> FdStream:
    """Return a stream that carries the bytes of `read` (b"" at the end) and passes sent bytes to `write`.

    `read` and `write` each run in a thread of their own, so neither waits for the event loop. `close` is called once,
    when either side has ended; it must make a waiting `read` return. An exception in either function ends the stream.
    """
    ours, theirs = socket.socketpair()

    def copy_in() -> None:
        with shutting_down_theirs():
            while data := read():
                theirs.sendall(data)

    def copy_out() -> None:
        try:
            with shutting_down_theirs():
                while data := theirs.recv(READ_BYTES):
                    write(data)
        finally:
            with contextlib.suppress(Exception):
                close()
            reader.join()
            theirs.close()

    @contextlib.contextmanager
    def shutting_down_theirs() -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- libraries have errors of their own
            logger.debug("a bridged stream ended: %r", error)
        finally:
            with contextlib.suppress(OSError):
                theirs.shutdown(socket.SHUT_RDWR)

    reader = threading.Thread(target=copy_in, name="hermes-exec-bridge-in", daemon=True)
    reader.start()
    threading.Thread(target=copy_out, name="hermes-exec-bridge-out", daemon=True).start()
    return FdStream(ours.detach())


def open_tls_tunnel(connection: ssl.SSLSocket) -> int:
    """Return the descriptor of a tunnel into a TLS connection. The tunnel owns the connection."""
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
            sent = 0
            with lock, contextlib.suppress(ssl.SSLWantWriteError):
                sent = connection.send(data)
            data = data[sent:]
            if not sent:
                wait(select.POLLOUT)

    def close() -> None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    return bridge_calls(read, write, close).detach()
