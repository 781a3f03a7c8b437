"""A socket for the runner in a container to connect to its driver, if both see the same files."""

# Not the obvious code: see docs/why-not-obvious.md ("Direct connection to the runner").

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path

from hermes_exec.aio.peers import peer_credentials
from hermes_exec.backends.owner import process_start
from hermes_exec.backends.strict_path import make_private_directory

DIRECTORY_PREFIX = "hermes-exec-dial-"
SOCKET = "socket"


class DialSocket:
    """A listening socket in `directory`, its own directory, which others reach only through a mount.

    Raises:
        OSError: If it cannot be made here.
    """

    def __init__(self) -> None:
        _sweep()
        self._private = make_private_directory(f"{DIRECTORY_PREFIX}{os.getpid()}-{process_start(os.getpid())}-")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The runner may have any uid in its container. Other users of this host cannot pass the parent directory.
            self.directory = self._private / "d"
            self.directory.mkdir()
            self.directory.chmod(0o755)
            self._listener.bind(str(self.directory / SOCKET))
            (self.directory / SOCKET).chmod(0o666)
            self._listener.listen(4)
        except OSError:
            self.close()
            raise

    def accept(self, pid: int, patience_s: float) -> socket.socket | None:
        """Wait for the connection of process `pid` and no other; blocking. Return None if it does not connect."""
        deadline = time.monotonic() + patience_s
        while (left_s := deadline - time.monotonic()) > 0:
            self._listener.settimeout(left_s)
            try:
                caller, _ = self._listener.accept()
            except TimeoutError:
                return None
            if pid > 0 and peer_credentials(caller)[0] == pid:
                return caller
            caller.close()
        return None

    def close(self) -> None:
        """Close and remove the socket. Repeated calls do nothing."""
        self._listener.close()
        shutil.rmtree(self._private, ignore_errors=True)


def _sweep() -> None:
    """Remove the directories of drivers that were killed while they started a container."""
    for left in Path(tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*"):
        pid, _, start = left.name.removeprefix(DIRECTORY_PREFIX).rpartition("-")[0].partition("-")
        with contextlib.suppress(OSError):
            if pid.isdigit() and left.stat().st_uid == os.geteuid() and str(process_start(int(pid))) != start:
                shutil.rmtree(left, ignore_errors=True)
