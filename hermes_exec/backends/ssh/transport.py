"""The contract of an SSH client. All methods block, and are called in threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from hermes_exec.aio.streams import FdStream


class CompletedCommand(NamedTuple):
    """A finished command of the host."""

    code: int
    stdout: bytes
    stderr: bytes


class Transport(Protocol):
    """One connection to a host, opened at first use and again after a loss."""

    def run(self, command: str, stdin: bytes, timeout_s: float) -> CompletedCommand:
        """Run a command of the host's shell to its end.

        Raises:
            BackendUnavailable: If the host is unreachable, or refuses the login.
        """

    def open(self, command: str) -> FdStream:
        """Start a command and return a stream of its standard input and output. Raises like `run`."""

    def close(self) -> None:
        """Close the connection. Repeated calls do nothing."""


class Attempts:
    """The lock for opening a connection. Threads that wait for a failing attempt share its failure, so they do not wait
    as long again.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._failed_at = 0.0
        self._failure: Exception | None = None

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Hold the lock, and record an exception of the block."""
        asked_at = time.monotonic()
        with self.lock:
            if self._failure is not None and self._failed_at > asked_at:
                raise self._failure
            try:
                yield
            except Exception as error:
                self._failed_at, self._failure = time.monotonic(), error
                raise


class StreamAfter(FdStream):
    """A stream without the lines before a marker, which start-up files of a shell may print. Takes over another
    stream.
    """

    def __init__(self, stream: FdStream, line: bytes) -> None:
        super().__init__(stream.detach())
        self._line: bytes | None = line
        self._before = b""

    def unwrap(self, data: bytes) -> bytes:
        """See `FdStream`."""
        if self._line is None:
            return data
        before, line, after = (self._before + data).partition(self._line)
        if line:
            self._line = None
        else:
            self._before = before[-len(self._line) :]
        return after
