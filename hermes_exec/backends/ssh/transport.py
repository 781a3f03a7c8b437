"""What an SSH client has to do here. All of it blocks, and is called in threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from hermes_exec.aio.streams import FdStream


class CompletedCommand(NamedTuple):
    """A command of the host that has ended."""

    code: int
    stdout: bytes
    stderr: bytes


class Transport(Protocol):
    """One connection to a host, made when it is first needed, and anew when it was lost."""

    def run(self, command: str, stdin: bytes, timeout_s: float) -> CompletedCommand:
        """Run a command of the host's shell to its end.

        Raises:
            BackendUnavailable: the host cannot be reached, or does not let us in.
        """

    def open(self, command: str) -> FdStream:
        """The standard input and output of a command. Raises as `run`."""

    def close(self) -> None:
        """Close the connection; harmless when repeated."""


class Attempts:
    """The lock for making a connection. Whoever waits for it while another's attempt fails shares that failure, instead
    of waiting as long once more.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._failed_at = 0.0
        self._failure: Exception | None = None

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Hold the lock, and remember what is raised meanwhile."""
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
    """Takes over a stream and leaves out what comes before a line: what the start-up files of a shell print."""

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
