"""Finds the leftovers of a run: its sandboxes, and the processes that it was observed to start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from hermes_exec.backends.base import Backend, SandboxInfo


class LocalProcess(NamedTuple):
    """A process. Its start time distinguishes it from a later process with the same pid."""

    pid: int
    started: int


class ProcessWatch:
    """Records the descendants of this process at each `look`, so that those which leave their parent later are still
    known.
    """

    def __init__(self) -> None:
        self.seen: set[LocalProcess] = set()

    def look(self) -> None:
        """Record the current descendants. Does nothing without /proc."""
        living = _processes()
        pids = {os.getpid()}
        grew = True
        while grew:
            children = {process.pid for process, parent in living.items() if parent in pids} - pids
            pids |= children
            grew = bool(children)
        self.seen |= {process for process in living if process.pid in pids and process.pid != os.getpid()}

    def list_left(self) -> list[LocalProcess]:
        """Return the recorded processes that are still alive, without zombies."""
        self.look()
        return sorted(self.seen & _processes().keys())


async def sandboxes_of(backend: Backend, run_id: str) -> list[SandboxInfo]:
    """Return the existing sandboxes of a run, as listed by the backend."""
    try:
        return [sandbox for sandbox in await backend.sandboxes() if sandbox.labels.run_id == run_id]
    finally:
        await backend.aclose()


def _processes() -> dict[LocalProcess, int]:
    """Return every process except zombies, with its parent."""
    processes: dict[LocalProcess, int] = {}
    for entry in Path("/proc").iterdir() if Path("/proc/self/stat").exists() else ():
        if not entry.name.isdecimal():
            continue
        try:
            state, parent, *rest = (entry / "stat").read_bytes().rpartition(b")")[2].split()
        except (OSError, ValueError):
            continue
        if state not in {b"Z", b"X"}:
            processes[LocalProcess(int(entry.name), int(rest[17]))] = int(parent)
    return processes
