"""Shows from inside and from the host that a slot is confined, before attacks that could end a machine are fired."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from hermes_exec.testing.conformance import outside
from tests.attack.arena import Arena

MOST_PROCESSES = 300
MOST_MEMORY = 1 << 30
FIRST_PID = 300
"""The least number of a tenant's process where the limit is one of numbers."""


async def unconfined(field: Arena, needs: tuple[str, ...]) -> str:
    """Why the attacker's slot is not confined in what an attack needs; empty when it is."""
    if not needs:
        return ""
    mark = f"confined-{secrets.token_hex(6)}"
    process = await field.attacker.spawn(["python3", "-c", "import time; time.sleep(60)", mark])
    try:
        pid = (await outside.wait_for_processes(mark, 1))[0]
        for need in needs:
            if why := await CHECKS[need](field, pid):
                return why
    finally:
        await process.kill()
    return ""


async def _processes(field: Arena, pid: int) -> str:
    """Its numbers of processes are not the host's: no signal can reach the host, whatever its number."""
    inside = (await field.attacker.run(["readlink", "/proc/self/ns/pid"])).stdout.strip()
    hosts, seen = os.readlink("/proc/self/ns/pid"), os.readlink(f"/proc/{pid}/ns/pid")
    if not inside.startswith("pid:[") or inside == hosts or seen == hosts or seen != inside:
        return f"it shares the host's process namespace ({inside}, {seen}, {hosts})"
    return ""


async def _pids(field: Arena, pid: int) -> str:
    """Some limit of processes holds: the host reads it, and a bounded trial inside runs into it."""
    numbers = (await field.attacker.run(["cat", "/proc/sys/kernel/pid_max"])).stdout
    most = min(_group(pid, "pids", "pids.max"), _rlimit(pid, "Max processes"), int(numbers or 1 << 62) - FIRST_PID)
    if most > MOST_PROCESSES:
        return f"its processes are not limited (host: {most})"
    trial = await field.run("resources.count_processes", {"most": most + 50})
    return "" if "limit: found" in trial.stdout or trial.exit_code != 0 else f"{most + 50} processes were started"


async def _memory(field: Arena, pid: int) -> str:
    """A limit of memory holds, as the host reads it."""
    most = min(_group(pid, "memory", "memory.limit_in_bytes"), _group(pid, "memory", "memory.max"))
    return "" if most <= MOST_MEMORY else "its memory is not limited"


CHECKS = {"processes": _processes, "pids": _pids, "memory": _memory}


def _group(pid: int, controller: str, file: str) -> int:
    """What a cgroup of a process says, or one above it."""
    lowest = 1 << 62
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(",") or not names:
            top = Path("/sys/fs/cgroup", controller if names else "")
            directory = top / path.lstrip("/")
            for place in (directory, *directory.parents):
                if place.is_relative_to(top) and (place / file).is_file():
                    value = (place / file).read_text().strip()
                    lowest = min(lowest, int(value) if value.isdigit() else lowest)
    return lowest


def _rlimit(pid: int, name: str) -> int:
    """A resource limit of a process that does not run as root, which is exempt."""
    if os.stat(f"/proc/{pid}").st_uid == 0:
        return 1 << 62
    for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
        if line.startswith(name):
            value = line.removeprefix(name).split()[1]
            return int(value) if value.isdigit() else 1 << 62
    return 1 << 62
