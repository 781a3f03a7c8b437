"""Forks: slots that are copies of a held slot."""

from __future__ import annotations

from hermes_exec.aio.facade import SyncFacade
from hermes_exec.pool.request import SlotRequest
from hermes_exec.pool.running import RunningPool
from hermes_exec.slot.checkpoint import AnyCheckpoint, plain_checkpoint
from hermes_exec.slot.slot import AnySlot, Slot


async def acquire_forks(
    running: RunningPool, source: AnySlot | AnyCheckpoint, count: int, request: SlotRequest
) -> list[Slot]:
    """Acquire `count` copies of a slot, or slots that start from a checkpoint. Raises as `SandboxPool.fork`."""
    plain = source.wrapped if isinstance(source, SyncFacade) else source
    if not isinstance(plain, Slot):
        return await running.queue.acquire(request._replace(from_=plain_checkpoint(plain)), count)
    running.checkpoints.check_fork(plain, count)
    checkpoint = await plain.checkpoint()
    try:
        return await running.queue.acquire(request._replace(from_=checkpoint), count)
    finally:  # in the background: a cancellation here would lose the slots
        running.checkpoints.forget(checkpoint)
