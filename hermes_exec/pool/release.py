"""Slots that come back: reset, and free again only when they are proven clean."""

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
from hermes_exec.slot.scope import raise_translated
from hermes_exec.slot.slot import Slot

logger = logging.getLogger(__name__)
HELD_SILENCE_S = 30.0
"""A holder's reset waits through this much silence: a machine that is far too busy for seconds costs no episode."""


class Releases:
    """The slots of one pool that somebody holds: resets them for their holder, and takes them back."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.acquire: Callable[[SlotRequest], Awaitable[list[Slot]]]
        """Acquires a slot for a holder that has to go on in another sandbox; the queue sets it."""
        self.held: dict[str, PooledSlot] = {}
        """By the `id` that the holder knows. A slot that goes on in another sandbox keeps it."""
        self._releases: dict[str, anyio.Event] = {}
        self._resets: dict[str, anyio.Event] = {}

    def close(self) -> None:
        """Tell all holders that the pool is closed."""
        for slot in self.held.values():
            slot.calls.expire("the pool was closed")
        for done in self._releases.values():
            done.set()
        self.held.clear()

    async def release(self, slot: Slot) -> None:
        """Take a slot back and reset it. Harmless when it is already back."""
        pooled = self.held.get(slot.id)
        if pooled is None or pooled.holder is not slot:
            if not slot.closed:
                raise ConfigError(f"slot {slot.id} is lent by another pool, which has to take it back")
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
            if (last := self.held.pop(slot_id, None)) is not None:  # another one where the reset led to another sandbox
                await self.recycle(last)
        finally:
            self.held.pop(slot_id, None)
            del self._releases[slot_id]
            done.set()

    def recycle_unused(self, slot: PooledSlot) -> None:
        """Take back a slot that its waiter did not get; at once where nothing was put into it."""
        if slot.touched:
            self.fleet.background(partial(self.recycle, slot, was_held=False), "take back")
            return
        slot.state = SlotState.FREE
        if slot.sandbox.record.id in self.fleet.sandboxes:
            self.fleet.state.record_return(slot.sandbox.record, anyio.current_time())

    async def recycle(self, slot: PooledSlot, *, was_held: bool = True) -> None:
        """Reset a slot: it is free when it is proven clean, else quarantined, and its sandbox replaced."""
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
        if not exclusive:  # its holder may be on the way to another sandbox
            slot.request, slot.scope, slot.holder = None, None, None
        self.fleet.state.record_return(sandbox.record, anyio.current_time(), drain=exclusive or bool(unclean))
        took = time.monotonic() - began
        if unclean:
            logger.warning("slot %s is quarantined: %s", name, unclean)
            self.fleet.emit(Quarantined(time=time.time(), sandbox=sandbox.id, slot=name, reason=unclean))
        elif was_held:
            self.fleet.emit(Reset(time=time.time(), sandbox=sandbox.id, slot=name, duration_s=took, killed=killed))
        self.fleet.on_change()

    async def reset(self, slot: Slot) -> None:
        """`Slot.reset`: the holder keeps the slot if it is proven clean, and goes on in another sandbox if it had the
        whole one.
        """
        pooled = self.held.get(slot.id)
        if pooled is None:
            raise SlotClosed("the slot was released")
        done = self._resets[slot.id] = anyio.Event()
        try:
            with anyio.CancelScope(shield=True):
                await self._reset_in_place(pooled, slot.id)
            if pooled.sandbox.template.exclusive:
                await self._move(pooled, slot.id)
        finally:
            del self._resets[slot.id]
            done.set()

    async def _reset_in_place(self, pooled: PooledSlot, slot_id: str) -> None:
        sandbox, scope = pooled.sandbox, pooled.calls
        try:
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
            workdir = sandbox.workdir(pooled.request or SlotRequest())
            pooled.scope = sandbox.scope(pooled, await sandbox.create(pooled), workdir)
            scope.continue_in(pooled.scope)
            await sandbox.provision(pooled, workdir)
        except ExecError as error:
            pooled.calls.expire(f"the slot could not be prepared after its reset: {error}")
            raise

    async def _move(self, pooled: PooledSlot, slot_id: str) -> None:
        """Let a holder go on in another sandbox: a reset does not undo what was changed in this one.

        Raises as `SandboxPool.acquire`; the slot is closed then.
        """
        logger.debug("slot %s goes to another sandbox", slot_id)
        scope, holder, request = pooled.calls, pooled.holder, pooled.request or SlotRequest()
        self.fleet.background(partial(self.recycle, pooled), f"take back {slot_id}")
        try:
            (other,) = await self.acquire(request._replace(timeout_s=None, owner=None))
        except BaseException as error:
            self.held.pop(slot_id, None)
            scope.expire(f"the slot could not go on in another sandbox: {error}")
            raise
        new = self.held.pop(other.id)
        new.holder = holder
        self.held[slot_id] = new
        scope.continue_in(new.calls)
