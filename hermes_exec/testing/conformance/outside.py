"""Counting of processes from outside the sandbox: a slot cannot hide a process from its host."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import anyio

PROC = Path("/proc")


def _command_lines() -> Iterator[tuple[int, bytes]]:
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if line:
                yield int(entry.name), line


def pids_with_mark(mark: str) -> list[int]:
    """Return the host's pids of all processes with the mark in their arguments, except this process."""
    wanted = mark.encode()
    return [pid for pid, line in _command_lines() if wanted in line and pid != os.getpid()]


def zombies_of(pids: list[int]) -> list[int]:
    """Return the pids of processes that have ended and were not reaped."""
    dead = []
    for pid in pids:
        try:
            state = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state == "Z":
            dead.append(pid)
    return dead


async def wait_until_gone(mark: str, within_s: float) -> list[int]:
    """Wait until no process has the mark. Return the pids that are left after `within_s`."""
    with anyio.move_on_after(within_s):
        while pids_with_mark(mark):  # noqa: ASYNC110 - other processes set no events
            await anyio.sleep(0.05)
    return pids_with_mark(mark)


async def wait_for_processes(mark: str, count: int, within_s: float = 30.0) -> list[int]:
    """Wait until `count` processes have the mark. Return their pids."""
    pids = pids_with_mark(mark)
    with anyio.move_on_after(within_s):
        while len(pids) < count:
            await anyio.sleep(0.05)
            pids = pids_with_mark(mark)
    return pids if len(pids) >= count else pids_with_mark(mark)


def end(pids: list[int]) -> None:
    """Kill marked processes that a failing backend left on this host."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
