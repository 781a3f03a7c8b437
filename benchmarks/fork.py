"""Checkpoints on Docker: their time beside an empty command, freezes of small and large changes, restore beside reset,
forks of a large state beside empty slots and beside repeated set-ups, and forks in another sandbox.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from tempfile import TemporaryDirectory

import anyio
from anyio import to_thread

from benchmarks.container import ensure_image
from benchmarks.contender import NOOP, ContenderMissing
from benchmarks.measurements import Discipline, Measurements, progress
from benchmarks.options import Options
from hermes_exec import SandboxPool
from hermes_exec.slot.checkpoint import Checkpoint
from hermes_exec.slot.slot import Slot

CHECKPOINT, FREEZE = "checkpoint of 20 small files", "checkpoint by freeze"
BACK, SETUP = "way back after a change, and a command", "set-up of the large state"
IMAGE, LAYER = "over the image", "over the large state"
COMMAND, COPY = "empty command", "checkpoint"
SMALL, FEW, LARGE = "1 MB in 50 files", "the size of the large state in 15 files", "the large state"
RESET, RESTORE = "reset", "restore over the large state"
EMPTY, SMALL_FORKS, FORKS = "empty slots", "forks of 20 small files", "forks of the large state"
ELSEWHERE = "a fork in another sandbox, and a command"
FIRST, LATER, FILE = "the first one, which copies the large state", "a later one", "from a file of the large state"
COUNTS = (8, 32)
SLOTS = max(COUNTS) + 1
TURNS = 5
FILES_A_MEGABYTE = 50
SMALL_CHANGE = ["bash", "-c", "mkdir -p change && for i in {1..20}; do echo $RANDOM > change/$i; done"]
WRITE_FILES = """
import os, sys
directory, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for number in range(count):
    inner = f"{directory}/{number // 100}"
    os.makedirs(inner, exist_ok=True)
    with open(f"{inner}/{number}", "wb") as file:
        file.write(os.urandom(size))
"""
"""Writes many files, as an installation of packages does."""


def slots_name(count: int) -> str:
    """Return the name of the discipline with `count` slots."""
    return f"{count} slots, acquired, each with a command"


async def measure(options: Options) -> Measurements:
    """Do everything in rounds, in the slots of one sandbox."""
    measurements = Measurements()
    try:
        image = await to_thread.run_sync(ensure_image)
    except ContenderMissing as error:
        measurements.leave_out("checkpoints and forks", error)
        return measurements
    bases = {
        CHECKPOINT: {f"{COPY} {state}": f"{COMMAND} {state}" for state in (IMAGE, LAYER)},
        FREEZE: {FEW: SMALL, LARGE: SMALL},
        BACK: {RESTORE: RESET},
        SETUP: {},
        ELSEWHERE: {FIRST: LATER, FILE: LATER},
        **{slots_name(count): {FORKS: EMPTY, SMALL_FORKS: EMPTY} for count in COUNTS},
    }
    measurements.disciplines += [Discipline(name, "times", base) for name, base in bases.items()]
    async with SandboxPool("docker", image=image, network=False, slots_per_sandbox=SLOTS, max_sandboxes=1) as pool:
        for number in range(options.rounds + 1):
            progress(f"checkpoints and forks: round {number} of {options.rounds}")
            # The first round makes the sandbox and its slots, and is not counted.
            stopwatch = Stopwatch(measurements.disciplines if number else [])
            await measure_round(pool, stopwatch, options.state_megabytes, reverse=number % 2 == 0)
    async with SandboxPool("docker", image=image, network=False, slots_per_sandbox=2, max_sandboxes=2) as pool:
        await pool.prewarm(2)
        for number in range(options.rounds + 1):
            progress(f"forks in another sandbox: round {number} of {options.rounds}")
            stopwatch = Stopwatch(measurements.disciplines if number else [])
            await measure_transfers(pool, stopwatch, options.state_megabytes)
    return measurements


async def measure_transfers(pool: SandboxPool, stopwatch: Stopwatch, megabytes: int) -> None:
    """Start forks of a large state in a sandbox that does not have it."""
    async with pool.slots(2) as (slot, other):  # both slots of one sandbox: forks have to start in the other one
        assert slot.sandbox == other.sandbox
        await write_files(slot, megabytes, megabytes * FILES_A_MEGABYTE)
        async with await slot.checkpoint(processes="end") as checkpoint:
            for name in (FIRST, LATER):
                with stopwatch.time(ELSEWHERE, name):
                    async with pool.slot(from_=checkpoint) as fork:
                        await run(fork, NOOP)
            with TemporaryDirectory() as directory:
                await checkpoint.save(f"{directory}/state.hxcp")
                with stopwatch.time(ELSEWHERE, FILE):
                    async with await pool.load(f"{directory}/state.hxcp") as loaded, pool.slot(from_=loaded) as fork:
                        await run(fork, NOOP)


class Stopwatch:
    """Adds times to the samples of the given disciplines. The times of other disciplines are dropped."""

    def __init__(self, disciplines: list[Discipline]) -> None:
        self._disciplines = {discipline.name: discipline for discipline in disciplines}

    @contextmanager
    def time(self, discipline: str, contender: str) -> Iterator[None]:
        """Time a block."""
        begin = time.perf_counter()
        yield
        duration_s = time.perf_counter() - begin
        if discipline in self._disciplines:
            self._disciplines[discipline].sample(contender).add_one(duration_s)


async def measure_round(pool: SandboxPool, stopwatch: Stopwatch, megabytes: int, *, reverse: bool) -> None:
    """Prepare a small and a large state in one slot, and measure with them."""
    async with pool.slot() as slot:
        small = await time_checkpoints(slot, stopwatch, IMAGE)
        for name, size, count in ((SMALL, 1, FILES_A_MEGABYTE), (FEW, megabytes, 15)):
            await write_files(slot, size, count)
            with stopwatch.time(FREEZE, name):
                frozen = await slot.checkpoint(processes="end")
            await slot.reset()
            await frozen.drop()
        with stopwatch.time(SETUP, SETUP):
            await write_files(slot, megabytes, megabytes * FILES_A_MEGABYTE)
        with stopwatch.time(FREEZE, LARGE):
            large = await slot.checkpoint(processes="end")
        changed = await time_checkpoints(slot, stopwatch, LAYER)
        await time_ways_back(slot, changed, stopwatch)
        for count in COUNTS:
            states = {EMPTY: None, SMALL_FORKS: small, FORKS: large}
            for name in reversed(states) if reverse else states:
                async with AsyncExitStack() as held:
                    with stopwatch.time(slots_name(count), name):
                        await run_in_each(await held.enter_async_context(pool.slots(count, from_=states[name])))
        for checkpoint in (small, large, changed):
            await checkpoint.drop()


async def time_checkpoints(slot: Slot, stopwatch: Stopwatch, state: str) -> Checkpoint:
    """Time checkpoints of a small change and empty commands in turns. Return the last of the checkpoints."""
    checkpoints: list[Checkpoint] = []
    for _ in range(TURNS):
        await run(slot, SMALL_CHANGE)
        with stopwatch.time(CHECKPOINT, f"{COMMAND} {state}"):
            await run(slot, NOOP)
        with stopwatch.time(CHECKPOINT, f"{COPY} {state}"):
            checkpoints.append(await slot.checkpoint())
    *others, last = checkpoints
    for checkpoint in others:
        await checkpoint.drop()
    return last


async def time_ways_back(slot: Slot, checkpoint: Checkpoint, stopwatch: Stopwatch) -> None:
    """Time restores and resets in turns, each after a small change and until the next command has ended."""
    for _ in range(TURNS):
        await run(slot, SMALL_CHANGE)
        with stopwatch.time(BACK, RESTORE):
            await slot.restore(checkpoint)
            await run(slot, NOOP)
        await run(slot, SMALL_CHANGE)
        with stopwatch.time(BACK, RESET):
            await slot.reset()
            await run(slot, NOOP)


async def run_in_each(slots: list[Slot]) -> None:
    """Run an empty command in each slot, all at once."""
    async with anyio.create_task_group() as tasks:
        for slot in slots:
            tasks.start_soon(run, slot, NOOP)


async def write_files(slot: Slot, megabytes: int, count: int) -> None:
    """Write some MB into a slot, in `count` files."""
    await run(slot, ["python3", "-c", WRITE_FILES, "packages", str(count), str(megabytes * 1_000_000 // count)])


async def run(slot: Slot, command: list[str]) -> None:
    """Run a command that succeeds."""
    result = await slot.run(command, timeout_s=300)
    assert result.ok, result
