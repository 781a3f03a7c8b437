"""The contract of an SSH client. All methods block, and are called in threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from hermes_exec.aio.streams import FdStream
from hermes_exec.backends.ssh.script import CompletedCommand, HostScript


class ClientStream(NamedTuple):
    """A stream of a command of the host."""

    stream: FdStream
    read_errors: Callable[[], str]
    """Return the messages of the client once the stream has ended."""


class Transport(Protocol):
    """One connection to a host, opened at first use and again after a loss."""

    def run(self, script: HostScript, stdin: bytes, timeout_s: float) -> CompletedCommand:
        """Run a script to its end. If the host's shell ends without running it, return the shell's end and output.

        Raises:
            BackendUnavailable: If the host is unreachable, or refuses the login.
        """

    def open(self, script: HostScript) -> ClientStream:
        """Start a script and return a stream of its standard input and output. Raises like `run`."""

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
