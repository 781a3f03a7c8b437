"""The work: slots on some backends, each with a worker that checks its answers, and hostile tenants beside them."""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from hermes_exec import ExecError, OutcomeUnknown, SandboxPool
from tests.faults.workload import Record, Worker
from tests.soak.backends import Backend
from tests.soak.hostile import attack

SLOW = "it took too long: the sandbox may have too little processor time"
"""What the runner says of a slot that was not ready in time."""
LONGEST_S = 120.0
"""The longest time of an acquire, and of a call."""


@dataclass
class Progress:
    """What was done so far, on so many slots."""

    slots: int
    hostile: int = 0
    """Further slots, of tenants that use up what they can."""
    calls: int = 0
    probes: list[tuple[float, float]] = field(default_factory=list)
    """Of each no-op: seconds since the begin of the work, and seconds that it took."""
    wrong: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Calls whose result came too late: nothing broke, so that only a machine that is far too busy can be the cause."""
    attacks: Counter[str] = field(default_factory=Counter)
    """What hostile tenants did, and which errors they got."""


async def work(
    backends: Sequence[Backend],
    run_id: str,
    seed: int,
    seconds: float,
    pause_s: float,
    progress: Progress,
    begun: Callable[[], None],
) -> None:
    """Have all workers work for so long; `pause_s` is what each rests between two things to do, about.

    `begun` is called when all sandboxes are there.
    """
    each = -(-progress.slots // len(backends)) + -(-progress.hostile // len(backends))
    async with AsyncExitStack() as stack:
        pools = [SandboxPool(**backend.pool_options(each, run_id)) for backend in backends]
        for pool, backend in zip(pools, backends, strict=True):
            await stack.enter_async_context(pool)
            await pool.prewarm(backend.sandboxes)
        start = time.monotonic()
        end = start + seconds
        begun()
        async with anyio.create_task_group() as tasks:
            for number in range(progress.slots):
                worker = Worker(pools[number % len(pools)], Record(), lambda _: ":", number, seed)
                tasks.start_soon(_worker, worker, start, end, pause_s, progress)
            for number in range(progress.hostile):
                tasks.start_soon(attack, pools[number % len(pools)], seed, number, end, progress.attacks)
            while time.monotonic() < end:
                await anyio.sleep(1.0)
                progress.calls = sum(pool.stats().calls for pool in pools)


async def _worker(worker: Worker, start: float, end: float, pause_s: float, progress: Progress) -> None:
    chance = random.Random(worker.tag)
    acts = worker._acts()
    await anyio.sleep(chance.uniform(0, 2 * pause_s))
    while time.monotonic() < end:
        try:
            with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
                async with worker.pool.slot(timeout_s=LONGEST_S) as slot:
                    for _ in range(chance.randint(4, 12)):
                        await chance.choice(acts)(slot, Path(directory))
                        began = time.monotonic()
                        result = await slot.run(["true"], timeout_s=LONGEST_S)
                        progress.probes.append((began - start, time.monotonic() - began))
                        if not result.ok:
                            progress.wrong.append(f"worker {worker.number}: true gave {result}")
                        await anyio.sleep(chance.uniform(0, 2 * pause_s))
                        if time.monotonic() > end:
                            break
        except OutcomeUnknown as error:
            progress.unknown.append(f"worker {worker.number}: {error}")
        except ExecError as error:
            late = progress.unknown if SLOW in str(error) else progress.wrong
            late.append(f"worker {worker.number}: {type(error).__name__}: {error}")
        progress.wrong += worker.record.wrong
        worker.record = Record()
