"""Random checkpoints, restores and forks of the workers, whose files and processes are checked afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from hermes_exec import AcquireTimeout, Checkpoint, ConfigError, OutcomeUnknown, SandboxPool, Slot, SlotBusy
from hermes_exec.slot.checkpoint import ProcessPolicy
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.faults.workload import Worker

COUNTER = "n=0; while :; do n=$((n + 1)); echo $n > next; mv next count; done"
GOES_ON = "until [ -s count ]; do :; done; n=$(cat count); until [ $(cat count) != $n ]; do :; done"
LAYERS_S = 30.0
"""How long the layers of dropped checkpoints may still count: their sandboxes report them every few seconds."""


async def use_checkpoint(worker: Worker, slot: Slot) -> None:
    """Change a slot after a checkpoint, return to it, and start another slot from it."""
    random, counts = worker.random, worker.random.random() < 0.5
    value = f"{worker.tag}c{worker.count}"
    await slot.files.write_text("held", value)
    if random.random() < 0.3:  # more than is copied without processes
        await slot.files.write_bytes("large", random.randbytes(17 << 20))
    if counts:
        await slot.spawn(COUNTER)
    processes: ProcessPolicy = random.choice(("keep", "keep", "end"))
    try:
        checkpoint = await slot.checkpoint(processes=processes)
    except (ConfigError, SlotBusy):  # no checkpoints here, or a call that was given up has not ended
        return
    try:
        if counts and processes == "keep":
            await _go_on(worker, slot)
        for act in random.sample((_return, _fork, _cancel), 2):
            await act(worker, slot, checkpoint, value)
    finally:
        if random.random() < 0.8:
            await checkpoint.drop()
        else:
            with anyio.move_on_after(random.uniform(0, 0.1)):
                await checkpoint.drop()


async def _go_on(worker: Worker, slot: Slot) -> None:
    result = await slot.run(GOES_ON, timeout_s=60)
    if not result.ok:
        worker.note(f"a process does not go on after a checkpoint: {result}")


async def _check(worker: Worker, slot: Slot, value: str, what: str) -> None:
    result = await slot.run("cat held; ls later 2>/dev/null", timeout_s=60)
    if result.stdout != value:
        worker.note(f"{what} has {result.stdout!r} instead of {value!r}: {result}")


async def _return(worker: Worker, slot: Slot, checkpoint: Checkpoint, value: str) -> None:
    await slot.run("echo other > held; touch later", timeout_s=60)
    await slot.restore(checkpoint)
    await _check(worker, slot, value, "a restored slot")
    if living := await slot.processes():
        worker.note(f"a restored slot has {living}")


async def _fork(worker: Worker, _: Slot, checkpoint: Checkpoint, value: str) -> None:
    try:
        async with worker.pool.slot(from_=checkpoint, timeout_s=worker.random.choice((0.02, 0.1, 3.0))) as fork:
            await _check(worker, fork, value, "a fork")
            await fork.run("echo other > held; touch later", timeout_s=60)
            await fork.reset()
            await _check(worker, fork, value, "a fork after its reset")
    except AcquireTimeout:
        worker.record.refused += 1


async def _cancel(worker: Worker, slot: Slot, checkpoint: Checkpoint, value: str) -> None:
    """Give up a checkpoint, and perhaps a restore."""
    with anyio.move_on_after(worker.random.uniform(0, 0.08)):
        try:
            await (await slot.checkpoint()).drop()
        except SlotBusy:
            return
    if await slot.processes():
        await _go_on(worker, slot)
    with anyio.move_on_after(worker.random.uniform(0, 0.08)) as scope:
        await slot.restore(checkpoint)
    if not scope.cancelled_caught:
        await _check(worker, slot, value, "a slot after a cancelled checkpoint and a restore")


async def find_left_layers(pool: SandboxPool) -> list[str]:
    """Return the layers that are left although no checkpoint and no slot uses them."""
    try:
        await until(lambda: not any(map(any, pool.stats().layers.values())), LAYERS_S)
    except (AssertionError, TimeoutError, OutcomeUnknown):
        return [f"{sandbox} still has layers: {size}" for sandbox, size in pool.stats().layers.items() if any(size)]
    return []
