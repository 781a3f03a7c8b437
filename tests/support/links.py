"""A long way between a driver and its sandbox: each byte arrives so much later, and none is held up by others."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from hermes_exec.aio.bridge import bridge_calls
from hermes_exec.aio.streams import READ_BYTES, FdStream
from hermes_exec.backends.base import Backend, Labels, LaunchSpec, Sandbox
from hermes_exec.config import BackendConfig

C = TypeVar("C", bound=BackendConfig)
Due = tuple[float, bytes]
SLOW_PIECE = 16 << 10


def delayed(stream: FdStream, one_way_s: float) -> FdStream:
    """The stream `one_way_s` seconds further away, which is given up for it; its descriptor must be a socket's."""
    far = socket.socket(fileno=stream.detach())
    far.setblocking(True)
    coming: queue.SimpleQueue[Due] = queue.SimpleQueue()
    going: queue.SimpleQueue[Due] = queue.SimpleQueue()

    def empty() -> None:
        while data := arrived(going):
            try:
                far.sendall(data)
            except OSError:
                return

    def close() -> None:
        going.put((0.0, b""))
        far.shutdown(socket.SHUT_RDWR)
        far.close()

    for work in (lambda: fill(coming, far, one_way_s), empty):
        threading.Thread(target=work, daemon=True).start()
    return bridge_calls(lambda: arrived(coming), lambda data: going.put((time.monotonic() + one_way_s, data)), close)


def fill(pieces: queue.SimpleQueue[Due], source: socket.socket, one_way_s: float) -> None:
    """Send all that comes from a socket on its way, and an empty piece at its end."""
    data = b" "
    while data:
        try:
            data = source.recv(READ_BYTES)
        except OSError:
            data = b""
        pieces.put((time.monotonic() + one_way_s, data))


def arrived(pieces: queue.SimpleQueue[Due]) -> bytes:
    """The next piece, once it is due."""
    due, data = pieces.get()
    time.sleep(max(0.0, due - time.monotonic()))
    return data


def throttled(stream: FdStream, bytes_per_s: float) -> FdStream:
    """The stream over a line that brings so many bytes a second, which is given up for it."""
    far = socket.socket(fileno=stream.detach())
    far.setblocking(True)

    def receive() -> bytes:
        try:
            data = far.recv(SLOW_PIECE)
        except OSError:
            data = b""
        time.sleep(len(data) / bytes_per_s)
        return data

    def close() -> None:
        far.shutdown(socket.SHUT_RDWR)
        far.close()

    return bridge_calls(receive, far.sendall, close)


def slow(config: C, bytes_per_s: float) -> C:
    """The same configuration, for sandboxes whose answers come over such a line."""
    return config.with_wrapper(lambda backend: _Far(backend, lambda stream: throttled(stream, bytes_per_s)))


def far_away(config: C, one_way_s: float) -> C:
    """The same configuration, for sandboxes whose streams take so long."""
    return config.with_wrapper(lambda backend: _Far(backend, lambda stream: delayed(stream, one_way_s)))


class _Far:
    """A backend whose sandboxes are far away."""

    def __init__(self, inner: Backend, away: Callable[[FdStream], FdStream]) -> None:
        self._inner = inner
        self._away = away

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def launch(self, spec: LaunchSpec, labels: Labels) -> _FarSandbox:
        return _FarSandbox(await self._inner.launch(spec, labels), self._away)


class _FarSandbox:
    def __init__(self, inner: Sandbox, away: Callable[[FdStream], FdStream]) -> None:
        self._inner = inner
        self._away = away

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def open(self, argv: Sequence[str]) -> FdStream:
        stream = await self._inner.open(argv)
        assert isinstance(stream, FdStream)
        return self._away(stream)


@contextmanager
def far_port(port: int, one_way_s: float) -> Iterator[int]:
    """A port of this host that leads to another one over a long way."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near, _ = server.accept()
                    threading.Thread(target=connect, args=(near, port, one_way_s), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def connect(near: socket.socket, port: int, one_way_s: float) -> None:
    """Bring all of both directions to the other end, so much later."""
    with near, socket.create_connection(("127.0.0.1", port)) as far:
        ways = [threading.Thread(target=carry, args=(*ends, one_way_s)) for ends in ((near, far), (far, near))]
        for way in ways:
            way.start()
        for way in ways:
            way.join()


def carry(source: socket.socket, target: socket.socket, one_way_s: float) -> None:
    """Bring all of one direction."""
    under_way: queue.SimpleQueue[Due] = queue.SimpleQueue()

    def empty() -> None:
        with contextlib.suppress(OSError):
            while data := arrived(under_way):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=empty)
    sender.start()
    fill(under_way, source, one_way_s)
    sender.join()
