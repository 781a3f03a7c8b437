"""A driver that is meant to be killed: `python -m tests.chaos.load OPTIONS` keeps 64 slots busy until then.

It prints a line when it begins, and one after each thing that was done.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
from typing import Any

import anyio

from hermes_exec import AcquireTimeout, ConfigError, SandboxPool, Slot, SlotBusy

SLOTS = 64


async def use(pool: SandboxPool, slot: Slot, draw: random.Random) -> None:
    """One thing that a rollout does."""
    match draw.randrange(8):
        case 0:
            await slot.run("seq 2000", timeout_s=60)
        case 1:
            await slot.spawn("sleep 1000 & sleep 1000")
        case 2:
            with anyio.move_on_after(draw.uniform(0.0, 0.2)):
                await slot.run("sleep 1000", timeout_s=None)
        case 3:
            await slot.files.write_bytes("file", draw.randbytes(20_000))
        case 4:
            await slot.run("wc -c", stdin=draw.randbytes(100_000))
        case 5 | 6:
            await checkpoint(pool, slot, draw)
        case _:
            await slot.session().run("setsid sleep 1000 & x=1")


async def checkpoint(pool: SandboxPool, slot: Slot, draw: random.Random) -> None:
    """Return to a checkpoint, or start another slot from it, where there are any."""
    with contextlib.suppress(ConfigError, AcquireTimeout, SlotBusy):
        async with await slot.checkpoint(processes=draw.choice(("keep", "end"))) as made:
            if draw.random() < 0.5:
                await slot.restore(made)
            else:
                async with pool.slot(from_=made, timeout_s=1) as fork:
                    await fork.run("ls", timeout_s=60)


async def work(pool: SandboxPool, number: int) -> None:
    """Acquire and use slots without end."""
    draw = random.Random(number)
    while True:
        async with pool.slot(timeout_s=None) as slot:
            for _ in range(draw.randint(1, 6)):
                await use(pool, slot, draw)
                print(number, flush=True)


async def main(options: dict[str, Any]) -> None:
    """All the workers."""
    print("begun", flush=True)
    async with SandboxPool(**options) as pool, anyio.create_task_group() as tasks:
        for number in range(SLOTS):
            tasks.start_soon(work, pool, number)


if __name__ == "__main__":
    anyio.run(main, json.loads(sys.argv[1]))
