"""The work: half of the slots on 4 Docker boxes, half of them local, each with a worker that checks its answers."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from hermes_exec import OutcomeUnknown, SandboxPool
from tests.faults.workload import Record, Worker

BOXES = 4
LONGEST_S = 120.0
"""For a slot to be lent, and for a call to be over."""


@dataclass
class Progress:
    """What was done so far, on so many slots."""

    slots: int
    calls: int = 0
    probes: list[tuple[float, float]] = field(default_factory=list)
    """Of each no-op: seconds since the begin of the work, and seconds that it took."""
    wrong: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Calls whose result came too late: nothing broke, so that only a machine that is far too busy can be the cause."""


def pools(image: str, run_id: str, slots: int) -> tuple[SandboxPool, SandboxPool]:
    """The two pools under test, each with half of the slots."""
    return (
        SandboxPool("local", slots_per_sandbox=slots // 2, max_sandboxes=1, run_id=run_id),
        SandboxPool(
            "docker",
            image=image,
            network=False,
            slots_per_sandbox=slots // 2 // BOXES,
            max_sandboxes=BOXES,
            run_id=run_id,
        ),
    )


async def work(
    image: str, run_id: str, seed: int, seconds: float, pause_s: float, progress: Progress, begun: Callable[[], None]
) -> None:
    """Have all workers work for so long; `pause_s` is what each rests between two things to do, about.

    `begun` is called when all boxes are there.
    """
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(pool) for pool in pools(image, run_id, progress.slots)]
        await both[0].prewarm(1)
        await both[1].prewarm(BOXES)
        start = time.monotonic()
        begun()
        async with anyio.create_task_group() as tasks:
            for number in range(progress.slots):
                worker = Worker(both[number % 2], Record(), lambda _: ":", number, seed)
                tasks.start_soon(_worker, worker, start, start + seconds, pause_s, progress)
            while time.monotonic() < start + seconds:
                await anyio.sleep(1.0)
                progress.calls = sum(pool.stats().calls for pool in both)


async def _worker(worker: Worker, start: float, end: float, pause_s: float, progress: Progress) -> None:
    chance = random.Random(worker.tag)
    acts = worker._acts()
    await anyio.sleep(chance.uniform(0, 2 * pause_s))
    while time.monotonic() < end:
        try:
            with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
                async with worker.pool.slot(timeout_s=LONGEST_S) as slot:
                    for _ in range(chance.randint(4, 12)):
                        await chance.choice(acts)(slot, Path(folder))
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
        progress.wrong += worker.record.wrong
        worker.record = Record()
