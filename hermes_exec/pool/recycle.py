"""Slots that come back: reset, and free again only when they are proven clean."""

from __future__ import annotations

import logging
import time
from functools import partial

import anyio

from hermes_exec.errors import ChannelLost, ExecError, SandboxDied, SlotClosed
from hermes_exec.pool.fleet import Fleet
from hermes_exec.pool.sandbox import PING_S, KillWatch, PooledSandbox, ResetOutcome, SlotPlace
from hermes_exec.results import Quarantined, Reset

logger = logging.getLogger(__name__)
PATIENCE_S = 2.0
"""A reset that takes longer goes on as long as the box answers pings."""


class Recycler:
    """Resets slots for the next tenant, or takes them out of use."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def begin_take_back(self, box: PooledSandbox, place: SlotPlace) -> None:
        """Take back a place that was not handed out; at once where nothing was put into it."""
        if not place.touched:
            place.lent = False
            if box.record.id in self.fleet.boxes:
                self.fleet.state.give_back(box.record, anyio.current_time(), clean=True)
            return
        self.fleet.background(partial(self.take_back, box, place, was_lent=False), "take back")

    async def take_back(
        self, box: PooledSandbox, place: SlotPlace, watch: KillWatch | None = None, *, was_lent: bool = True
    ) -> None:
        """Reset a place: it is free when it is proven clean, else quarantined. `watch` has seen its holder's kills;
        of one that was never lent nothing was told, and nothing is told of its reset.
        """
        name = self.fleet.slot_id(box, place)
        began = time.monotonic()
        outcome: ResetOutcome | None = None
        reason = ""
        if box.record.id in self.fleet.boxes:
            try:
                outcome = await self.reset(box, place)
                reason = outcome.reason
            except (ExecError, OSError) as error:
                explained = await box.explain_loss(error) if isinstance(error, ExecError) else error
                reason = str(explained)
                if isinstance(explained, SandboxDied):
                    self.fleet.mark_dead(box)
        if box.record.id not in self.fleet.boxes or self.fleet.closing:
            place.lent = False
            return
        doubtful = watch is not None and watch.found and not box.template.whole_box
        if watch is not None and doubtful:
            reason = watch.reason
        clean = outcome is not None and outcome.clean and not doubtful
        reusable = outcome is not None and outcome.reusable
        place.lent = place.touched = False
        place.quarantined = not clean
        now = anyio.current_time()
        self.fleet.state.give_back(box.record, now, clean=clean, drain=not reusable)
        took = time.monotonic() - began
        if not clean:
            logger.warning("slot %s is quarantined: %s", name, reason)
            self.fleet.emit(Quarantined(time=time.time(), sandbox=box.id, slot=name, reason=reason))
        elif outcome is not None and was_lent:
            self.fleet.emit(Reset(time=time.time(), sandbox=box.id, slot=name, duration_s=took, killed=outcome.killed))
        self.fleet.on_change()

    async def reset(self, box: PooledSandbox, place: SlotPlace, silence_s: float = PING_S) -> ResetOutcome:
        """Reset a place, but stop waiting when the box is silent for so long: the result is then ignored.

        Raises:
            ExecError: as `PooledSandbox.reset`, and ChannelLost when the box does not answer.
        """
        done = anyio.Event()
        found: list[ResetOutcome | ExecError] = []

        async def work() -> None:
            try:
                found.append(await box.reset(place))
            except ExecError as error:
                found.append(error)
            finally:
                done.set()

        self.fleet.background(work, f"reset in {box.id}")
        while not done.is_set():
            with anyio.move_on_after(PATIENCE_S):
                await done.wait()
            # A stream that is being restored is the channel's matter: it gives up when the lease is over.
            if not done.is_set() and box.channel.state == "open" and not await box.ping(silence_s):
                raise ChannelLost(f"the box has not answered for {silence_s:g} s", sandbox=box.id)
        if not found:
            raise SlotClosed("the pool was closed")
        if isinstance(found[0], ExecError):
            raise found[0]
        return found[0]
