"""The real Docker engine behind a socket of our own, on which some requests are never answered."""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

ENGINE = "/var/run/docker.sock"


class SilentEngine:
    """Passes everything on until a request matches `silent_to`; its connection then stays open and says nothing."""

    def __init__(self, directory: Path) -> None:
        self.silent_to: re.Pattern[str] | None = None
        self.swallowed: list[str] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._path = directory / "engine.sock"
        self._listener.bind(str(self._path))
        self._listener.listen(64)
        self.base_url = f"unix://{self._path}"
        self._threads: list[threading.Thread] = []
        self._silent: list[socket.socket] = []
        self._ends: list[socket.socket] = []

    def be_silent(self, requests: str) -> None:
        """Answer no request any more whose first line, such as ``DELETE /v1.47/containers/ab?v=True HTTP/1.1``,
        contains this expression.
        """
        self.silent_to = re.compile(requests)

    def cut_the_silent(self) -> None:
        """Answer again, and cut the connections that wait for an answer."""
        self.silent_to = None
        _cut(self._silent)

    def is_used(self) -> bool:
        """Whether a connection is open."""
        return any(thread.is_alive() for thread in self._threads[1:])

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        _cut(self._ends)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()
        assert not any(thread.is_alive() for thread in self._threads)

    def _begin(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            engine = socket.socket(socket.AF_UNIX)
            engine.connect(ENGINE)
            self._ends += [client, engine]
            self._begin(self._relay, client, engine)

    def _relay(self, client: socket.socket, engine: socket.socket) -> None:
        silent = False
        with client, engine, selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ, engine)
            ready.register(engine, selectors.EVENT_READ, client)
            while True:
                for key, _ in ready.select():
                    came = key.fileobj
                    assert isinstance(came, socket.socket)
                    try:
                        data = came.recv(1 << 16)
                        line = data.partition(b"\r\n")[0].decode("latin-1")
                        if came is client and self.silent_to is not None and self.silent_to.search(line):
                            silent = True
                            self._silent.append(client)
                            self.swallowed.append(line)
                        if not data:
                            return
                        if not silent:
                            key.data.sendall(data)
                    except OSError:
                        return


def _cut(connections: list[socket.socket]) -> None:
    """Cut connections, which may be at their end already."""
    for end in connections:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
