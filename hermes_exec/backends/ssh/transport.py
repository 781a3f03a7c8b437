"""What an SSH client has to do here, and what its failures mean. All of it blocks, and is called in threads."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from hermes_exec.aio.streams import FdStream
from hermes_exec.backends.engine_errors import away_for_now
from hermes_exec.backends.ssh.config import SSHHost
from hermes_exec.errors import BackendUnavailable

CLOSED = "the connection was closed"


class Completed(NamedTuple):
    """A command of the host that has ended."""

    code: int
    stdout: bytes
    stderr: bytes


class Transport(Protocol):
    """One connection to a host, made when it is first needed, and anew when it was lost."""

    def run(self, command: str, stdin: bytes, timeout_s: float) -> Completed:
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
    def one(self) -> Iterator[None]:
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


CHANGED = (
    "its host key has changed, or somebody else answers: if that is right, ssh-keygen -R '{entry}' forgets the old one "
    "(with -f FILE where known_hosts= names another file)"
)
NEW = (
    "its host key is not known: compare it, then {scan} >> ~/.ssh/known_hosts (or the file of known_hosts=), or "
    "host_keys='accept-new'"
)
SILENT = "it does not answer"
REASONS = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED|BadHostKey", CHANGED),
    (r"No \S+ host key is known|Host key verification failed|not found in known_hosts", NEW),
    (
        "ncorrect passphrase|encrypted|Passw|nvalid key",
        "the key needs its passphrase: load it into ssh-agent, or give passphrase=",
    ),
    ("Permission denied|uthentication", "it does not let us in: ssh-copy-id {name}, or give identity_file"),
    ("ould not resolve|Name or service not known|nodename nor servname", "its name is not known"),
    ("onnection refused|Unable to connect", "no SSH server listens there"),
    ("imed out|timeout|No route to host|unreachable", SILENT),
    ("", "the connection failed"),
)
"""What clients say, and what it means; the first that matches."""


class StreamAfter(FdStream):
    """Takes over a stream and leaves out what comes before a line: what the start-up files of a shell print."""

    def __init__(self, stream: FdStream, line: bytes) -> None:
        super().__init__(stream.detach())
        self._line: bytes | None = line
        self._before = b""

    def unwrap(self, data: bytes) -> bytes:
        """See ``FdStream``."""
        if self._line is None:
            return data
        before, line, after = (self._before + data).partition(self._line)
        if line:
            self._line = None
        else:
            self._before = before[-len(self._line) :]
        return after


def unavailable(host: SSHHost, said: str) -> BackendUnavailable:
    """The error for what a client said, with the cause and what mends it."""
    reason = next(reason for pattern, reason in REASONS if re.search(pattern, said))
    told = " ".join(line for line in said.splitlines() if line.strip() and not line.startswith("@"))[-500:]
    entry = host.host if host.port in {None, 22} else f"[{host.host}]:{host.port}"
    scan = " ".join(("ssh-keyscan", *(() if host.port is None else ("-p", str(host.port))), host.host))
    error = BackendUnavailable(f"ssh {host.name}: {reason.format(name=host.name, entry=entry, scan=scan)} ({told})")
    return away_for_now(error) if reason is SILENT else error
