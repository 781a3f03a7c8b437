"""Slots of a shared sandbox: the cost to acquire a ready slot, and to release it with many files in it."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

from anyio import to_thread

from benchmarks.calls import DOCKER, LOCAL
from benchmarks.container import ensure_image
from benchmarks.contender import NOOP, ContenderMissing
from benchmarks.measurements import Discipline, Measurements, Sample, progress
from benchmarks.options import Options
from hermes_exec import SandboxPool

ACQUIRE, RELEASE, RESET = "warm acquire", "release of an unused slot", "release with reset of 1,000 files"
FIRST = "first command after an acquire"
"""This command starts the slot agent and, if the slot has its own root, this root."""
FILES = "for i in {1..1000}; do echo $i > file-$i; done"
ACQUIRES_A_ROUND, FIRST_A_ROUND = 20, 5
SLOTS = 8


async def measure(options: Options) -> Measurements:
    """Acquire and release slots in rounds, both backends in turn."""
    measurements = Measurements()
    disciplines = [Discipline(name, "times", {}) for name in (ACQUIRE, RELEASE, RESET, FIRST)]
    measurements.disciplines += disciplines
    async with AsyncExitStack() as stack:
        pools = {LOCAL: await stack.enter_async_context(SandboxPool("local", slots_per_sandbox=SLOTS))}
        try:
            name = await to_thread.run_sync(ensure_image)
            pool = SandboxPool("docker", image=name, network=False, slots_per_sandbox=SLOTS, max_sandboxes=1)
            pools[DOCKER] = await stack.enter_async_context(pool)
        except ContenderMissing as error:
            measurements.leave_out(f"{DOCKER}, acquire", error)
        for number in range(options.rounds + 1):
            progress(f"acquire: round {number} of {options.rounds}")
            for name, pool in pools.items():
                # The first round makes the sandbox and is not counted.
                samples = [each.sample(name) if number else Sample() for each in disciplines]
                await acquire_and_release(pool, *samples)
    return measurements


async def acquire_and_release(
    pool: SandboxPool, acquire: Sample, release: Sample, reset: Sample, first: Sample
) -> None:
    """Acquire some slots without work, two that leave files, and some with one command."""
    for turn in range(ACQUIRES_A_ROUND + 2):
        begin = time.perf_counter()
        slot = await pool.acquire()
        acquire.add_one(time.perf_counter() - begin)
        full = turn >= ACQUIRES_A_ROUND
        if full:
            assert (await slot.run(["bash", "-c", FILES])).ok
        begin = time.perf_counter()
        await pool.release(slot)
        (reset if full else release).add_one(time.perf_counter() - begin)
    for _ in range(FIRST_A_ROUND):
        async with pool.slot() as slot:
            begin = time.perf_counter()
            assert (await slot.run(NOOP)).ok
            first.add_one(time.perf_counter() - begin)
