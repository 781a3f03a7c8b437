"""The programs of ours that a slot has, the agent and the runner, as this host sees them."""

from __future__ import annotations

import secrets
from pathlib import Path

from hermes_exec import Slot
from hermes_exec.testing.conformance import outside


def words(pid: int) -> list[bytes]:
    """The command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def status(pid: int) -> dict[str, str]:
    """What the kernel tells of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def peak_mib(pid: int) -> int:
    """The most memory that a process ever had."""
    return int(status(pid)["VmHWM"].split()[0]) // 1024


async def our_programs(slot: Slot) -> list[int]:
    """The slot's agent and its runner: the ancestors of what runs in the slot."""
    mark = secrets.token_hex(8)
    process = await slot.spawn(["sh", "-c", "read line", mark], stdin=True)
    pid = (await outside.wait_for_processes(mark, 1))[0]
    found = []
    while pid > 1:
        pid = int(status(pid)["PPid"])
        if pid and words(pid)[1:2] in ([b"agent"], [b"serve"]):
            found.append(pid)
    await process.kill()
    assert found
    return found
