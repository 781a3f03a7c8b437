"""What commands leave behind outside of their slot when they run: one trace for each time."""

from __future__ import annotations

import socketserver
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol


class Evidence(Protocol):
    """Counts how often each command ran."""

    def snippet(self, name: str) -> str:
        """Shell text that leaves a trace of this name."""

    def counts(self) -> Counter[str]:
        """How many traces there are of each name."""


class Listener:
    """Traces told to a listener on loopback, for slots that share this host's network."""

    def __init__(self, port: int, heard: Counter[str]) -> None:
        self._port, self._heard = port, heard

    def snippet(self, name: str) -> str:
        """See `Evidence`."""
        return f"exec 9<>/dev/tcp/127.0.0.1/{self._port} && echo {name} >&9 && read -r told <&9; exec 9>&-"

    def counts(self) -> Counter[str]:
        """See `Evidence`."""
        return Counter(self._heard)


@contextmanager
def listening() -> Iterator[Listener]:
    """A listener, which answers when it has counted: what a command does later is after its trace."""
    heard: Counter[str] = Counter()
    lock = threading.Lock()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            name = self.rfile.readline().decode().strip()
            if not name:
                return  # ended before it had said anything
            with lock:
                heard[name] += 1
            try:
                self.wfile.write(b"told\n")
            except OSError:
                return

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 256  # a connection that finds no place in the queue waits for up to a minute

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield Listener(server.server_address[1], heard)
        finally:
            server.shutdown()
            thread.join()


class Directory:
    """Traces as files of a directory that every sandbox has mounted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def snippet(self, name: str) -> str:
        """See `Evidence`."""
        return f"mktemp /evidence/{name}.XXXXXXXX >/dev/null"

    def counts(self) -> Counter[str]:
        """See `Evidence`."""
        return Counter(entry.name.rsplit(".", 1)[0] for entry in self.path.iterdir())


@contextmanager
def directory() -> Iterator[Directory]:
    """A directory that every user may write to."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o777)
        yield Directory(Path(path))
