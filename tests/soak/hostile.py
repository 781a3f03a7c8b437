"""Tenants beside the work that use up what they can: output, ended processes, directories, counters of the kernel.

All are bounded, and run only in slots that are confined: at `namespaces`, with a root of their own, or in a sandbox of
their own.
"""

from __future__ import annotations

import random
import time
from collections import Counter

import anyio

from hermes_exec import ExecError, SandboxPool, Slot
from tests.attack.counters import MOST, PROGRAM

MIB = 1 << 20
LONGEST_S = 120.0
CONFINED = ("namespaces", "exclusive")
FLOOD = "head -c 100000000 /dev/zero & head -c 100000000 /dev/zero >&2; wait"
ENDED, AT_ONCE = 512, 8
LEVELS = 2000
NESTED = f"""
import os
for _ in range({LEVELS}):
    os.mkdir("d" * 250)
    os.chdir("d" * 250)
"""


async def flood(slot: Slot) -> None:
    """Flood both streams of a command whose output is wanted."""
    await slot.run(FLOOD, output_limit_bytes=16 * MIB, timeout_s=LONGEST_S)


async def flood_background(slot: Slot) -> None:
    """Flood both streams of three processes that nobody reads."""
    processes = [await slot.spawn(FLOOD, output_limit_bytes=64 * MIB) for _ in range(3)]
    for process in processes:
        await process.wait(LONGEST_S)


async def end_many(slot: Slot) -> None:
    """Start processes that end, each with as much output as is kept."""
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def end_one() -> None:
        async with limiter:
            process = await slot.spawn("head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2")
            await process.wait(LONGEST_S)

    async with anyio.create_task_group() as tasks:
        for _ in range(ENDED):
            tasks.start_soon(end_one)


async def nest(slot: Slot) -> None:
    """Nest directories, which the next reset has to remove."""
    await slot.run(["python3", "-c", NESTED], timeout_s=LONGEST_S)


async def take_counters(slot: Slot) -> None:
    """Take all that is given of what the kernel counts by user, and hold it."""
    await slot.files.write_bytes("counters.py", PROGRAM.read_bytes())
    for name, most in MOST.items():
        await slot.spawn(["python3", "-B", f"{slot.workspace}/counters.py", name, str(most)], stdin=True)
    await anyio.sleep(5)


ATTACKS = (flood, flood_background, end_many, nest, take_counters)


async def attack(pool: SandboxPool, seed: int, number: int, end: float, done: Counter[str]) -> None:
    """Attack from slot after slot until `end`, and count what was done and what it came to.

    Raises:
        RuntimeError: a slot is not confined.
    """
    chance = random.Random(f"{seed}/hostile/{number}")
    while time.monotonic() < end:
        try:
            async with pool.slot(timeout_s=LONGEST_S) as slot:
                if (level := slot.isolation.level) not in CONFINED:
                    raise RuntimeError(f"a slot of {slot.backend} at level {level} is not for hostile work")
                for _ in range(chance.randint(1, 3)):
                    chosen = chance.choice(ATTACKS)
                    done[chosen.__name__] += 1
                    await chosen(slot)
        except* (ExecError, OSError) as errors:
            done[_name(errors)] += 1


def _name(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__} ({error})"
