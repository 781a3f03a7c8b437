"""One driver with more and more live slots: `python -m benchmarks.scale_driver BACKEND SLOTS SECONDS` prints JSON.

It runs in its own process, so that its memory belongs to the slots and not to earlier measurements.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
from collections.abc import Awaitable, Callable

import anyio

from benchmarks.container import ensure_image
from benchmarks.contender import NOOP
from benchmarks.measurements import keep_in_flight
from benchmarks.memory import descriptors, memory_kb
from hermes_exec import SandboxPool
from hermes_exec.slot.slot import Slot

SANDBOXES = 4
AT_ONCE = 8
ACQUIRED_AT_ONCE = 16


async def main(backend: str, most: int, seconds: float) -> None:
    """Grow to `most` slots in steps of ten, and measure at each step."""
    name = None if backend == "local" else ensure_image()
    each = -(-most // SANDBOXES)
    pool = SandboxPool(
        backend,
        image=name,
        network=name is None,
        slots_per_sandbox=each,
        max_sandboxes=SANDBOXES,
        shutdown_timeout_s=60,
    )
    slots: list[Slot] = []
    async with pool:
        await pool.prewarm(SANDBOXES)
        for count in slot_counts(most):
            await grow(pool, slots, count)
            call = rotate_slots(slots)
            await keep_in_flight(call, AT_ONCE, seconds / 2)
            times_s, elapsed_s = await keep_in_flight(call, AT_ONCE, seconds)
            gc.collect()
            report = {
                "slots": count,
                "sandboxes": len({slot.sandbox for slot in slots}),
                "descriptors": descriptors(os.getpid()),
                "rss_kb": memory_kb(os.getpid()),
                "times_s": times_s,
                "elapsed_s": elapsed_s,
            }
            print(json.dumps(report), flush=True)


def slot_counts(most: int) -> list[int]:
    """Return 1, 10, 100, … and `most` itself."""
    return [*itertools.takewhile(lambda count: count < most, (10**power for power in range(9))), most]


async def grow(pool: SandboxPool, slots: list[Slot], count: int) -> None:
    """Acquire the missing slots. Each new slot runs a command, which starts its agent."""
    limit = anyio.Semaphore(ACQUIRED_AT_ONCE)

    async def acquire_slot() -> None:
        async with limit:
            slot = await pool.acquire()
            await run(slot)
            slots.append(slot)

    async with anyio.create_task_group() as tasks:
        for _ in range(count - len(slots)):
            tasks.start_soon(acquire_slot)


def rotate_slots(slots: list[Slot]) -> Callable[[], Awaitable[None]]:
    """Return a call that uses another slot each time."""
    turn = itertools.cycle(slots)
    return lambda: run(next(turn))


async def run(slot: Slot) -> None:
    """Run the empty command."""
    result = await slot.run(NOOP)
    assert result.ok, result


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
