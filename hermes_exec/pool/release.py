"""Releasing slots: a slot is reset, and free again only when it is proven clean."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from hermes_exec.errors import ConfigError, ExecError, SandboxDied, SlotClosed
from hermes_exec.pool.fleet import Fleet
from hermes_exec.pool.request import SlotRequest
from hermes_exec.pool.sandbox import PooledSlot
from hermes_exec.pool.state import SlotState
from hermes_exec.results import KillReceipt, Quarantined, Reset
from hermes_exec.slot.checkpoint import Checkpoint, SlotStart
from hermes_exec.slot.scope import raise_translated
from hermes_exec.slot.slot import Slot

logger = logging.getLogger(__name__)
HELD_SILENCE_S = 30.0
"""A holder's reset tolerates this much silence: a machine that is overloaded for seconds costs no episode."""


class Releases:
    """The slots of one pool that are in use: resets them for their holders, and returns them to the pool."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.acquire: Callable[[SlotRequest], Awaitable[list[Slot]]]
        """Acquires a slot for a holder that has to move to another sandbox; the queue sets it."""
        self.held: dict[str, PooledSlot] = {}
        """Slots in use, by the `id` that the holder knows. A slot keeps its `id` when it moves to another sandbox."""
        self._releases: dict[str, anyio.Event] = {}
        self._resets: dict[str, anyio.Event] = {}

    def close(self) -> None:
        """Expire the calls of all holders: the pool is closed."""
        for slot in self.held.values():
            slot.calls.expire("the pool was closed")
        for done in self._releases.values():
            done.set()
        self.held.clear()

    async def release(self, slot: Slot) -> None:
        """Release a slot and reset it. No effect if it is already released."""
        pooled = self.held.get(slot.id)
        if pooled is None or pooled.holder is not slot:
            if not slot.closed:
                raise ConfigError(f"slot {slot.id} belongs to another pool: release it there")
            return
        done = self._releases.get(slot.id)
        if done is None:
            done = self._releases[slot.id] = anyio.Event()
            pooled.calls.expire("the slot was released")
            self.fleet.background(partial(self._release, slot.id, pooled, done), f"release {slot.id}")
        await done.wait()

    async def _release(self, slot_id: str, pooled: PooledSlot, done: anyio.Event) -> None:
        try:
            await pooled.calls.close("the slot was released")
            if (reset := self._resets.get(slot_id)) is not None:
                await reset.wait()
            if (last := self.held.pop(slot_id, None)) is not None:  # another slot if the reset moved its holder
                await self.recycle(last)
        finally:
            self.held.pop(slot_id, None)
            self.fleet.used_at = anyio.current_time()
            del self._releases[slot_id]
            done.set()

    def recycle_unused(self, slot: PooledSlot) -> None:
        """Return a slot that its request did not get; without a reset if nothing was written to it."""
        if slot.touched:
            self.fleet.background(partial(self.recycle, slot, was_held=False), "recycle")
            return
        slot.state = SlotState.FREE
        if slot.sandbox.record.id in self.fleet.sandboxes:
            self.fleet.state.record_return(slot.sandbox.record, anyio.current_time())

    async def recycle(self, slot: PooledSlot, *, was_held: bool = True) -> None:
        """Reset a slot. It is free when it is proven clean, otherwise it is quarantined and its sandbox replaced."""
        sandbox, name, began = slot.sandbox, self.fleet.slot_id(slot), time.monotonic()
        slot.state = SlotState.RESETTING
        killed: KillReceipt | None = None
        unclean = ""
        if sandbox.record.id in self.fleet.sandboxes:
            try:
                killed, unclean = await sandbox.reset(slot)
            except (ExecError, OSError) as error:
                failure = await sandbox.explain_loss(error) if isinstance(error, ExecError) else error
                unclean = str(failure)
                if isinstance(failure, SandboxDied):
                    self.fleet.mark_dead(sandbox)
        if sandbox.record.id not in self.fleet.sandboxes or self.fleet.closing:
            return
        exclusive = sandbox.template.exclusive
        if not exclusive:
            unclean = slot.unproven or unclean
        slot.state = SlotState.QUARANTINED if unclean else SlotState.FREE
        slot.touched = False
        if not exclusive:  # otherwise its holder may still be moving
            slot.request, slot.settings, slot.scope, slot.holder = None, None, None, None
        self.fleet.state.record_return(sandbox.record, anyio.current_time(), drain=exclusive or bool(unclean))
        took = time.monotonic() - began
        if unclean:
            logger.warning("slot %s is quarantined: %s", name, unclean)
            self.fleet.emit(Quarantined(time=time.time(), sandbox=sandbox.id, slot=name, reason=unclean))
        elif was_held:
            self.fleet.emit(Reset(time=time.time(), sandbox=sandbox.id, slot=name, duration_s=took, killed=killed))
        self.fleet.on_change()

    async def reset(self, slot: Slot) -> None:
        """Implement `Slot.reset`: the holder keeps a slot that is proven clean. The holder of a whole sandbox gets
        another sandbox, and of a slot from a checkpoint the state of the checkpoint.
        """
        await self._reset(slot.id, None)

    async def restore(self, slot_id: str, checkpoint: Checkpoint) -> None:
        """Implement `Slot.restore`: a reset, after which the slot has the state of the checkpoint."""
        await self._reset(slot_id, checkpoint)

    async def _reset(self, slot_id: str, checkpoint: Checkpoint | None) -> None:
        pooled = self.held.get(slot_id)
        if pooled is None:
            raise SlotClosed("the slot was released")
        done = self._resets[slot_id] = anyio.Event()
        try:
            with anyio.CancelScope(shield=True):
                await self._reset_in_place(pooled, slot_id, checkpoint)
            if pooled.sandbox.template.exclusive:
                await self._move(pooled, slot_id)
        finally:
            del self._resets[slot_id]
            done.set()

    async def _reset_in_place(self, pooled: PooledSlot, slot_id: str, checkpoint: Checkpoint | None) -> None:
        sandbox, scope = pooled.sandbox, pooled.calls
        killed: KillReceipt | None
        start: SlotStart | None = None
        try:
            if checkpoint is not None:
                killed, unclean, start = await sandbox.restore(pooled, checkpoint, HELD_SILENCE_S)
            elif pooled.base is not None:
                killed, unclean, start = await sandbox.restore(pooled, pooled.base, HELD_SILENCE_S, again=True)
            else:
                killed, unclean = await sandbox.reset(pooled, HELD_SILENCE_S)
        except ExecError as error:
            scope.expire(f"the slot could not be reset: {error}")
            if self.fleet.closing:
                raise SlotClosed(scope.closed or "the pool was closed") from error
            raise_translated(await sandbox.explain_loss(error), error)
        if unclean:
            pooled.unproven = unclean
            scope.expire(f"the slot could not be proven clean: {unclean}")
            raise ExecError(f"the slot could not be proven clean: {unclean}", sandbox=sandbox.id)
        profile = sandbox.template.profile
        self.fleet.emit(
            Reset(time=time.time(), sandbox=sandbox.id, profile=profile, slot=slot_id, held=True, killed=killed)
        )
        if sandbox.template.exclusive:
            return
        try:
            workdir = sandbox.workdir(pooled) if checkpoint is None else None
            pooled.scope = sandbox.scope(pooled, await sandbox.create(pooled), workdir, start)
            scope.continue_in(pooled.scope)
            if checkpoint is None:
                await sandbox.provision(pooled, workdir)
            else:
                await sandbox.run_on_fork(pooled, checkpoint)
        except ExecError as error:
            pooled.calls.expire(f"the slot could not be prepared after its reset: {error}")
            raise

    async def _move(self, pooled: PooledSlot, slot_id: str) -> None:
        """Move a holder to another sandbox, because a reset does not undo changes to its whole sandbox.

        Raises as `SandboxPool.acquire`; the slot is then closed.
        """
        logger.debug("slot %s moves to another sandbox", slot_id)
        scope, holder, request = pooled.calls, pooled.holder, pooled.request or SlotRequest()
        self.fleet.background(partial(self.recycle, pooled), f"recycle {slot_id}")
        try:
            (other,) = await self.acquire(request._replace(timeout_s=None, owner=None))
        except BaseException as error:
            self.held.pop(slot_id, None)
            scope.expire(f"the slot could not move to another sandbox: {error}")
            raise
        new = self.held.pop(other.id)
        new.holder = holder
        self.held[slot_id] = new
        scope.continue_in(new.calls)
