"""What one slot takes of the counters that the kernel keeps by user, and what neighbours and the driver still get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from typing import Any

import anyio

from hermes_exec import Process, SandboxPool, Slot
from tests.attack.arena import PROGRAMS

PROGRAM = PROGRAMS / "counters.py"
MOST = {"signals": 1300, "timers": 1300, "inotify": 150, "queues": 20, "terminals": 80}
"""How many of each the attacker asks for: more than a slot gets, and little enough for a machine without bounds."""
Taken = dict[str, dict[str, int]]


async def take_all(backend: str, options: dict[str, Any]) -> Taken:
    """How many of each counter the attacker got, and of one more the others."""
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(SandboxPool(backend, slots_per_sandbox=2, **options))
        attacker, neighbour = await stack.enter_async_context(pool.slots(2))
        assert attacker.sandbox == neighbour.sandbox
        for slot in (attacker, neighbour):
            await slot.files.write_bytes("counters.py", PROGRAM.read_bytes())
        held = {name: await _begin(attacker, name, most) for name, most in MOST.items()}
        taken = {name: {"attacker": number} for name, (_, number) in held.items()}
        # Slots are made while everything is held: an agent must not need any of it.
        second = await stack.enter_async_context(SandboxPool(backend, slots_per_sandbox=2, **options))
        other = await stack.enter_async_context(second.slot())
        await other.files.write_bytes("counters.py", PROGRAM.read_bytes())
        for name, found in taken.items():
            found["neighbour"], found["second pool"] = await _one(neighbour, name), await _one(other, name)
            found["driver"] = _one_here(name)
        for process, _ in held.values():
            assert (await process.kill()).left == 0
    return taken


def _command(directory: str, name: str, most: int) -> list[str]:
    return ["python3", "-B", f"{directory}/counters.py", name, str(most)]


async def _begin(slot: Slot, name: str, most: int) -> tuple[Process, int]:
    process = await slot.spawn(_command(slot.workspace, name, most), stdin=True)
    said = b""
    with anyio.fail_after(60):
        while b"\n" not in said:
            said += await process.stdout.receive()
    return process, int(said)


async def _one(slot: Slot, name: str) -> int:
    result = await slot.run(_command(slot.workspace, name, 1), timeout_s=60)
    return int(result.check().stdout)


def _one_here(name: str) -> int:
    command = [sys.executable, *_command(str(PROGRAMS), name, 1)[1:]]
    return int(subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout)


def main() -> None:
    """Print as JSON what is taken over a backend with options, as JSON, with the uid that the driver has."""
    backend, options = sys.argv[1:]
    print(json.dumps({"uid": os.geteuid(), "taken": anyio.run(take_all, backend, json.loads(options))}))


if __name__ == "__main__":
    main()
