"""Child processes of this host: a stream to stdin and stdout, and a log for stderr."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hermes_exec.aio.streams import FdStream
from hermes_exec.backends.owner import descendants
from hermes_exec.private_files import open_private

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TIED_TO_PARENT = (
    'f=$1; shift; exec 3<&0; "$@" </dev/null 3<&- & p=$!; (read _ <&3; rm -rf "$f"; kill -9 0) 2>/dev/null & wait $p'
)
KILL_TIMEOUT_S = 5.0
"""Longest wait for the end of a killed process, which the kernel may delay."""


def start_child(
    command: Sequence[str],
    log: Path,
    env: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own, with this environment, and without this process's descriptors and signal
    settings.

    Raises:
        OSError: If it cannot be started, or the log cannot be written.
    """
    with open(log, "ab", opener=open_private) as file:
        return subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=file, env=env, cwd="/", start_new_session=True, close_fds=True
        )


def open_child(command: Sequence[str], log: Path, env: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], FdStream]:
    """Start a child and return it with a stream to it: a socket whose other end is its stdin and stdout. Raises like
    `start_child`.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            child = start_child(command, log, env, theirs.fileno(), theirs.fileno())
        except OSError:
            ours.close()
            raise
    return child, FdStream(ours.detach())


def tie_to_parent(command: Sequence[str], directory: str = "") -> list[str]:
    """Return a command that runs another one in its process group, which must be its own.

    It ends with that command, or when the other end of its standard input is closed. Then the directory is removed too.
    """
    return ["/bin/sh", "-c", TIED_TO_PARENT, "sh", directory, *command]


def kill_with_descendants(child: subprocess.Popen[bytes]) -> None:
    """Kill a child with its process group and descendants, and wait a moment for its end."""
    if child.poll() is None:
        started = descendants(child.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        for pid in started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    if child.stdin is not None:
        child.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=KILL_TIMEOUT_S)
