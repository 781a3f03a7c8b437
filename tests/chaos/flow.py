"""A call that is under way when something happens, the next call on its slot, and the next slot of the pool."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import anyio

from hermes_exec import SandboxPool
from tests.chaos.observations import told

SAME, REPLACED = "keeps the sandbox", "replaces the sandbox"
TEN = "".join(f"{number}\n" for number in range(1, 11))


class Flow(NamedTuple):
    """How it went; times are of time.monotonic()."""

    call: str
    then: str
    pool: str
    began_at: float
    ended_at: float


async def flow(
    options: Mapping[str, Any], command: str, output: str, strike: Callable[[str], Awaitable[object]]
) -> Flow:
    """Have `strike` happen, with the name of the sandbox, when the command has printed its first line."""
    names: list[str] = []
    async with SandboxPool(**options) as pool:
        async with pool.slot() as slot:
            names.append(slot.sandbox)
            begun = anyio.Event()
            began_at = 0.0

            pieces: list[bytes] = []

            def look(_stream: str, piece: bytes) -> None:
                pieces.append(piece)
                begun.set()

            async def happen() -> None:
                nonlocal began_at
                await begun.wait()
                began_at = time.monotonic()
                await strike(slot.sandbox)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(happen)
                call = await told(lambda: slot.run(command, timeout_s=None, on_output=look), output)
                begun.set()
            assert output.encode().startswith(b"".join(pieces))
            then = await told(lambda: slot.run("echo on", timeout_s=60), "on\n")
        async with pool.slot(timeout_s=100) as slot:
            names.append(slot.sandbox)
            assert (await slot.run("echo again", timeout_s=60)).stdout == "again\n"
        launches = pool.stats().launches
    same = names[0] == names[1] and launches == 1
    assert same or (names[0] != names[1] and launches == 2), (names, launches)
    return Flow(call.text, then.text, SAME if same else REPLACED, began_at, call.at)
