"""The processes of a sandbox, where this host can see them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from hermes_exec.backends.base import Sandbox
from hermes_exec.backends.capabilities import HostVisible
from hermes_exec.errors import ExecError

SMALL_BYTES = 1 << 30
FILLER = "filled-by-a-fault"


class SandboxProcesses:
    """The serving runner of a sandbox, and the processes that carry its streams. Signals never hit another process."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._runner: int | None = None
        self._pid = 0
        self._base = ""
        pid: int | None = None
        with contextlib.suppress(ExecError):
            pid = sandbox.host_pid() if isinstance(sandbox, HostVisible) else None
        if pid is None or not hasattr(os, "pidfd_open"):
            return
        with contextlib.suppress(OSError):
            self._runner = os.pidfd_open(pid)
            self._base = _base_of(pid, "serve")
            self._pid = pid
        if self._runner is not None and not self._base:
            self.close()

    @property
    def visible(self) -> bool:
        """Whether the sandbox's processes can be signalled from here."""
        return self._runner is not None

    def kill_attached(self) -> int:
        """Kill the processes that carry streams. Return their number."""
        killed = 0
        served = _directory_of(self._pid, self._base)
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                process = os.pidfd_open(int(entry.name))
                try:
                    attached = _base_of(int(entry.name), "attach")
                    if served and attached and _directory_of(int(entry.name), attached) == served:
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                        killed += 1
                finally:
                    os.close(process)
        return killed

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[int]:
        """Fill the file system of the sandbox's slots within the block.

        Yields the number of bytes written, or 0 if the file system is too large to fill or not visible from this host.
        """
        if self._runner is None:
            yield 0
            return
        directory = Path(f"/proc/{self._pid}/root") / self._base.lstrip("/")
        filled, path = 0, directory / FILLER
        try:
            room = os.statvfs(directory)
            if 0 < room.f_blocks * room.f_frsize <= SMALL_BYTES:
                filled = _fill(path)
        except OSError:
            filled = 0
        try:
            yield filled
        finally:
            with contextlib.suppress(OSError):
                path.unlink()

    def close(self) -> None:
        """Forget the sandbox."""
        if self._runner is not None:
            os.close(self._runner)
            self._runner = None


def _fill(path: Path) -> int:
    """Write a file until the disk is full. Return its size in bytes."""
    size = 0
    with path.open("wb", buffering=0) as file:
        for piece in (bytes(1 << 20), bytes(1 << 12), bytes(1)):
            with contextlib.suppress(OSError):
                while True:
                    size += file.write(piece)
    return size


def _directory_of(pid: int, base: str) -> tuple[int, int] | None:
    """Return the identity (device and inode) of a directory that a process sees under this path."""
    try:
        status = os.stat(f"/proc/{pid}/root/{base.lstrip('/')}")
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _base_of(pid: int, role: str) -> str:
    """Return the base directory of a runner process with this role, or "" for any other process."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    if len(words) < 4 or words[1] != role.encode() or b"--base" not in words:
        return ""
    return os.fsdecode(words[words.index(b"--base") + 1])
