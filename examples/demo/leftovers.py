"""Looks for what a run left behind: its sandboxes, and processes that it was seen to have started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from hermes_exec.backends.base import Backend, SandboxInfo


class LocalProcess(NamedTuple):
    """A process, told apart from a later one with the same pid by its start."""

    pid: int
    started: int


class ProcessWatch:
    """Remembers the descendants of this process that it was shown, also when they have left their parent since."""

    def __init__(self) -> None:
        self.seen: set[LocalProcess] = set()

    def look(self) -> None:
        """Remember the descendants that live now. Without /proc: nothing."""
        living = _processes()
        pids = {os.getpid()}
        grew = True
        while grew:
            children = {process.pid for process, parent in living.items() if parent in pids} - pids
            pids |= children
            grew = bool(children)
        self.seen |= {process for process in living if process.pid in pids and process.pid != os.getpid()}

    def list_left(self) -> list[LocalProcess]:
        """Those that live still, zombies aside."""
        self.look()
        return sorted(self.seen & _processes().keys())


async def sandboxes_of(backend: Backend, run_id: str) -> list[SandboxInfo]:
    """The sandboxes of a run that exist now, as the backend itself tells."""
    try:
        return [sandbox for sandbox in await backend.sandboxes() if sandbox.labels.run_id == run_id]
    finally:
        await backend.aclose()


def _processes() -> dict[LocalProcess, int]:
    """Every process but zombies, with its parent."""
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
