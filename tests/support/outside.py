"""What tests see from outside the sandboxes: processes of this host by a mark in their arguments."""

from __future__ import annotations

import os
import secrets
import signal
import time
from pathlib import Path

import anyio


def mark() -> str:
    """A number of seconds that `sleep` takes and nobody else uses."""
    return f"3{secrets.randbelow(10**8):08d}.{secrets.randbelow(10**8):08d}"


def marked(word: str) -> list[int]:
    """Processes with this word among their arguments, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
            except OSError:
                continue
            if word.encode() in words and state != b"Z":
                found.append(int(entry.name))
    return found


async def count_becomes(word: str, count: int, within_s: float = 60.0) -> None:
    """Wait until so many marked processes live; assert that it happens in time."""
    deadline = time.monotonic() + within_s
    while len(marked(word)) != count and time.monotonic() < deadline:  # noqa: ASYNC110 - other processes set no events
        await anyio.sleep(0.01)
    assert len(marked(word)) == count


def runner_pid(sandbox: str) -> int:
    """The runner of a local sandbox."""
    return int(sandbox.removeprefix("local-"))


async def frozen(pid: int) -> None:
    """Stop a process, and wait until all of it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 60
    while {_state(task) for task in Path(f"/proc/{pid}/task").glob("*/stat")} - {b"T", b""}:  # noqa: ASYNC240
        assert time.monotonic() < deadline
        await anyio.sleep(0.01)


def _state(stat: Path) -> bytes:
    try:
        return stat.read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return b""


def alive(pid: int) -> bool:
    """Whether a process lives, and is no zombie."""
    return _state(Path(f"/proc/{pid}/stat")) not in (b"Z", b"")


async def ends(pid: int, within_s: float = 60.0) -> None:
    """Wait until a process has ended; assert that it happens in time."""
    deadline = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < deadline:  # noqa: ASYNC110 - other processes set no events
        await anyio.sleep(0.01)
    assert not alive(pid)
