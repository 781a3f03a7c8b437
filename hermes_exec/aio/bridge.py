"""A stream over blocking calls: what a library reads and writes in threads, as a descriptor that any thread can use."""

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


def bridged(read: Callable[[], bytes], write: Callable[[bytes], object], close: Callable[[], object]) -> FdStream:
    """A stream that carries what `read` gives (b"" at the end) and hands what is sent to `write`.

    Each is called in a thread of its own, so that neither waits for the event loop. `close` is called once, when either
    side has ended; it must make a `read` that waits return. An error of theirs ends the stream.
    """
    ours, theirs = socket.socketpair()

    def come() -> None:
        with theirs_ends():
            while data := read():
                theirs.sendall(data)

    def go() -> None:
        try:
            with theirs_ends():
                while data := theirs.recv(READ_BYTES):
                    write(data)
        finally:
            with contextlib.suppress(Exception):
                close()
            coming.join()
            theirs.close()

    @contextlib.contextmanager
    def theirs_ends() -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- libraries have errors of their own
            logger.debug("a bridged stream ended: %r", error)
        finally:
            with contextlib.suppress(OSError):
                theirs.shutdown(socket.SHUT_RDWR)

    coming = threading.Thread(target=come, name="hermes-exec-bridge-in", daemon=True)
    coming.start()
    threading.Thread(target=go, name="hermes-exec-bridge-out", daemon=True).start()
    return FdStream(ours.detach())


def encrypted(connection: ssl.SSLSocket) -> int:
    """The descriptor of a tunnel to an encrypted connection, which it owns."""
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

    return bridged(read, write, close).detach()
