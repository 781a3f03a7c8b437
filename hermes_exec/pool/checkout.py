"""Slots go out and come back: waiting in line, making a slot ready, taking it back clean or not at all."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio

from hermes_exec.errors import (
    AcquireTimeout,
    BackendUnavailable,
    ChannelLost,
    ConfigError,
    ExecError,
    LaunchError,
    OutcomeUnknown,
    ProtocolError,
    SandboxDied,
    SlotClosed,
)
from hermes_exec.pool.fleet import Fleet
from hermes_exec.pool.sandbox import KillWatch, PooledSandbox, ResetOutcome, SlotPlace
from hermes_exec.pool.state import Phase, Waiter
from hermes_exec.pool.templates import Template
from hermes_exec.results import Lent, Quarantined, Reset
from hermes_exec.slot.scope import raise_seen
from hermes_exec.slot.slot import Slot

logger = logging.getLogger(__name__)
RECHECK_S = 1.0
PATIENCE_S = 2.0
"""A reset that takes longer goes on as long as the box answers in between."""
TRANSPORT = (ChannelLost, OutcomeUnknown, ProtocolError, SandboxDied)


@dataclass(slots=True)
class Ticket:
    """A waiter's side of the line."""

    waiter: Waiter
    done: anyio.Event = field(default_factory=anyio.Event)
    places: list[tuple[PooledSandbox, SlotPlace]] = field(default_factory=list)
    error: ExecError | None = None
    doing: str = ""
    """What was still being done in a slot for it when it was withdrawn."""


@dataclass(slots=True)
class Checkout:
    """A slot that somebody holds."""

    slot: Slot
    box: PooledSandbox
    place: SlotPlace
    watch: KillWatch
    returned: anyio.Event | None = None
    moving: anyio.Event | None = None
    """Set while the slot goes to another box: until then there is nothing to give back."""


class Checkouts:
    """The slots of one pool. It tells the keeper of every change, and the keeper lets the planner decide."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.by_slot: dict[str, Checkout] = {}
        self.waits: deque[float] = deque(maxlen=1000)
        self._tickets: dict[int, Ticket] = {}
        fleet.checkouts = self

    def held(self, box: PooledSandbox) -> int:
        """How many slots of a box are lent."""
        return sum(checkout.box is box and checkout.moving is None for checkout in self.by_slot.values())

    def hand_over(self, waiter: Waiter, shares: dict[int, int]) -> None:
        """The planner has slots for a waiter."""
        self.fleet.state.lend(waiter, shares)
        ticket = self._tickets.pop(waiter.id)
        for box_id, count in shares.items():
            box = self.fleet.boxes[box_id]
            free = [place for place in box.places if not place.lent and not place.quarantined][:count]
            for place in free:
                place.lent, place.doing = True, ""
                ticket.places.append((box, place))
        ticket.done.set()

    def fail(self, waiter: Waiter) -> None:
        """The planner gives a waiter up."""
        del self.fleet.state.waiters[waiter.id]
        ticket = self._tickets.pop(waiter.id)
        ticket.error = self._launch_error(waiter.template)
        ticket.done.set()

    def _launch_error(self, key: str) -> ExecError:
        history = self.fleet.state.history(key)
        last = history.error
        if isinstance(last, ConfigError | BackendUnavailable) or (isinstance(last, LaunchError) and history.hopeless):
            error: ExecError = type(last)(*last.args, cause=last.cause, retryable=last.retryable, sandbox=last.sandbox)
        else:
            kind = type(last) if isinstance(last, LaunchError) else LaunchError
            said = f"{history.failures} launches in a row failed, the last one with: {last}"
            error = kind(said)
            if isinstance(last, ExecError):
                error.cause, error.retryable = last.cause, last.retryable
        error.__cause__ = last
        return error

    async def acquire(self, template: Template, count: int, timeout_s: float, owner: str | None) -> list[Slot]:
        """Wait for slots and make them ready. Raises as `SandboxPool.acquire`."""
        began = time.monotonic()
        waiter = self.fleet.state.enqueue(template.key, anyio.current_time(), slots=count)
        ticket = Ticket(waiter)
        slots: list[Slot] | None = None
        with anyio.move_on_after(timeout_s) as scope:
            while slots is None:
                ticket = self._tickets[waiter.id] = Ticket(waiter)
                try:
                    self.fleet.reconcile()
                    if not ticket.done.is_set():
                        await ticket.done.wait()
                    if ticket.error is not None:
                        raise ticket.error
                    slots = await self._prepare(template, ticket)
                    if slots is None:
                        self.fleet.state.requeue(waiter)
                except BaseException:
                    self._withdraw(ticket)
                    raise
        if slots is None:
            assert scope.cancelled_caught
            raise self._timed_out(template, ticket, timeout_s)
        waited = time.monotonic() - began
        self.waits.append(waited)
        for slot in slots:
            self.fleet.emit(
                Lent(
                    time=time.time(),
                    sandbox=slot.sandbox,
                    profile=template.profile,
                    slot=slot.id,
                    owner=owner,
                    waited_s=waited,
                )
            )
        return slots

    async def warm(self, template: Template, count: int, timeout_s: float) -> None:
        """Wait until so many boxes of a kind are ready."""
        waiter = self.fleet.state.enqueue(template.key, anyio.current_time(), slots=0, boxes=count)
        ticket = self._tickets[waiter.id] = Ticket(waiter)
        with anyio.move_on_after(timeout_s):
            try:
                self.fleet.reconcile()
                await ticket.done.wait()
            except BaseException:
                self._withdraw(ticket)
                raise
        if ticket.error is not None:
            raise ticket.error
        if not ticket.done.is_set():
            raise self._timed_out(template, ticket, timeout_s)

    def _withdraw(self, ticket: Ticket) -> None:
        """A waiter leaves without its slots."""
        self._tickets.pop(ticket.waiter.id, None)
        self.fleet.state.waiters.pop(ticket.waiter.id, None)
        ticket.doing = next((place.doing for _, place in ticket.places if place.doing), "")
        for box, place in ticket.places:
            self._begin_take_back(box, place)
        ticket.places = []
        self.fleet.reconcile()

    def _timed_out(self, template: Template, ticket: Ticket, timeout_s: float) -> ExecError:
        if ticket.doing:
            return AcquireTimeout(f"no slot within {timeout_s:g} s: one was there, but {ticket.doing}")
        waiter = ticket.waiter
        records = [box for box in self.fleet.state.boxes.values() if box.template == template.key]
        history = self.fleet.state.history(template.key)
        if history.error is not None and history.seen >= waiter.id and not any(box.healthy for box in records):
            return self._launch_error(template.key)
        boxes = self.fleet.state.boxes.values()
        counts = ((phase.value, sum(box.phase is phase for box in boxes)) for phase in Phase)
        told = ", ".join(f"{count} {name}" for name, count in counts if count) or "no sandboxes"
        ahead = sum(
            other.id < waiter.id and other.template == template.key for other in self.fleet.state.waiters.values()
        )
        free, lent = sum(box.free for box in records), sum(box.lent for box in records)
        text = (
            f"no slot within {timeout_s:g} s: waited for {max(1, waiter.slots)} of {template.key!r}, which has "
            f"{lent} lent and {free} free; "
            f"{ahead} requests were ahead; {told}, at most {self.fleet.templates.max_sandboxes}"
        )
        if draining := sum(box.draining and box.lent > 0 for box in records):
            text += (
                f"; {draining} of the sandboxes lend no more, for a slot there could not be proven clean, and are"
                " replaced when their lent slots are back"
            )
        if history.error is not None:
            text += f"; the last launch failed: {history.error}"
        error = AcquireTimeout(text)
        error.__cause__ = history.error
        return error

    async def _prepare(self, template: Template, ticket: Ticket) -> list[Slot] | None:
        """Make the lent places into slots; None when a box turned out to be gone, and the places were given back."""
        by_slot: list[Checkout | None] = [None] * len(ticket.places)
        failures: list[ExecError] = []

        async def one(index: int, box: PooledSandbox, place: SlotPlace) -> None:
            try:
                by_slot[index] = await self._prepare_slot(box, place)
            except ExecError as error:
                failures.append(error)

        async def see(box: PooledSandbox) -> None:
            if not await box.ping():
                failures.append(ChannelLost("the box does not answer", sandbox=box.id))
                await self._suspect(box)

        await _together(see, [(box,) for box in {id(box): box for box, _ in ticket.places}.values()])
        if not failures:
            await _together(one, [(index, *pair) for index, pair in enumerate(ticket.places)])
        if not failures:
            ready = [checkout for checkout in by_slot if checkout is not None]
            for checkout in ready:
                self.by_slot[checkout.slot.id] = checkout
            ticket.places = []
            return [checkout.slot for checkout in ready]
        fatal = [error for error in failures if not isinstance(error, TRANSPORT)]
        if fatal:
            raise fatal[0]
        for box, place in ticket.places:
            self._begin_take_back(box, place)
        ticket.places = []
        return None

    async def _prepare_slot(self, box: PooledSandbox, place: SlotPlace) -> Checkout:
        """Create the slot if need be, and put into it what belongs there."""
        try:
            facts = await box.create(place)
        except TRANSPORT:
            await self._suspect(box)
            raise
        watch = KillWatch()
        checkout: Checkout | None = None

        async def reset() -> None:
            assert checkout is not None
            await self._reset_held(checkout)

        slot = Slot(
            id=self.fleet.slot_id(box, place),
            facts=facts,
            scope=lambda: box.scope(place, watch),
            sandbox=box.id,
            backend=box.template.backend.name,
            image=box.template.image,
            reset=reset,
        )
        checkout = Checkout(slot, box, place, watch)
        place.touched = True
        try:
            await box.provision(place, slot.scope)
        except BaseException:
            await slot.end("the slot could not be prepared")
            raise
        return checkout

    async def _suspect(self, box: PooledSandbox) -> None:
        """A box does not answer: bury it if it is dead, else lend nothing of it until it answers."""
        status = await box.status()
        if status.state == "dead":
            self.fleet.mark_dead(box)
        elif box.record.phase is Phase.READY and not box.record.suspect:
            box.record.suspect = True
            self.fleet.background(lambda: self._recheck(box), f"recheck {box.id}")

    async def _recheck(self, box: PooledSandbox) -> None:
        while box.record.phase is Phase.READY and box.record.id in self.fleet.boxes:
            await anyio.sleep(RECHECK_S)
            if await box.ping():
                box.record.suspect = False
                self.fleet.reconcile()
                return

    async def shut_down(self) -> None:
        """Tell waiters and holders that the pool is closed."""
        for ticket in list(self._tickets.values()):
            ticket.error = SlotClosed("the pool was closed")
            ticket.done.set()
        for checkout in list(self.by_slot.values()):
            checkout.slot.expire("the pool was closed")
            if checkout.returned is not None:
                checkout.returned.set()
        self.by_slot.clear()

    async def release(self, slot: Slot) -> None:
        """Take a slot back and reset it. Harmless when it is already back."""
        checkout = self.by_slot.get(slot.id)
        if checkout is None or checkout.slot is not slot:
            if slot.scope.closed is None:
                raise ConfigError(f"slot {slot.id} is lent by another pool, which has to take it back")
            return
        if checkout.returned is None:
            checkout.returned = anyio.Event()
            slot.expire("the slot was released")
            self.fleet.background(partial(self._return, checkout), f"reset {slot.id}")
        await checkout.returned.wait()

    async def _return(self, checkout: Checkout) -> None:
        slot = checkout.slot
        try:
            await slot.end("the slot was released")
            if checkout.moving is not None:
                await checkout.moving.wait()
            if self.by_slot.pop(slot.id, None) is not None:
                await self._take_back(checkout.box, checkout.place, checkout)
        finally:
            self.by_slot.pop(slot.id, None)
            if checkout.returned is not None:
                checkout.returned.set()

    def _begin_take_back(self, box: PooledSandbox, place: SlotPlace) -> None:
        """Take a place back that nobody got; at once where nothing was put into it."""
        if not place.touched:
            place.lent = False
            if box.record.id in self.fleet.boxes:
                self.fleet.state.give_back(box.record, anyio.current_time(), clean=True)
            return
        self.fleet.background(partial(self._take_back, box, place), "take back")

    async def _take_back(self, box: PooledSandbox, place: SlotPlace, checkout: Checkout | None = None) -> None:
        """Reset a place and give it back to the ledger: free when it is proven clean, else quarantined."""
        name = self.fleet.slot_id(box, place)
        began = time.monotonic()
        outcome: ResetOutcome | None = None
        reason = ""
        if box.record.id in self.fleet.boxes:
            try:
                outcome = await self._reset(box, place)
                reason = outcome.reason
            except (ExecError, OSError) as error:
                explained = await box.explain_loss(error) if isinstance(error, ExecError) else error
                reason = str(explained)
                if isinstance(explained, SandboxDied):
                    self.fleet.mark_dead(box)
        if box.record.id not in self.fleet.boxes or self.fleet.closing:
            place.lent = False
            return
        left = None if checkout is None else checkout.watch.left
        if checkout is not None and left is not None:
            reason = checkout.watch.reason
        clean = outcome is not None and outcome.clean and left is None
        reusable = outcome is not None and outcome.reusable
        place.lent = place.touched = False
        place.quarantined = not clean
        now = anyio.current_time()
        self.fleet.state.give_back(box.record, now, clean=clean, drain=not reusable)
        took = time.monotonic() - began
        if not clean:
            logger.warning("slot %s is quarantined: %s", name, reason)
            self.fleet.emit(Quarantined(time=time.time(), sandbox=box.id, slot=name, reason=reason))
        elif outcome is not None:
            self.fleet.emit(Reset(time=time.time(), sandbox=box.id, slot=name, duration_s=took, killed=outcome.killed))
        self.fleet.reconcile()

    async def _reset(self, box: PooledSandbox, place: SlotPlace) -> ResetOutcome:
        """Reset a place, but do not wait for a box that has fallen silent: what comes of it then is of no interest.

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
            if not done.is_set() and not await box.ping():
                raise ChannelLost("the box does not answer", sandbox=box.id)
        if not found:
            raise SlotClosed("the pool was closed")
        if isinstance(found[0], ExecError):
            raise found[0]
        return found[0]

    async def _reset_held(self, checkout: Checkout) -> None:
        """`Slot.reset`: the holder keeps the slot if it is proven clean."""
        box, slot = checkout.box, checkout.slot
        with anyio.CancelScope(shield=True):
            try:
                outcome = await self._reset(box, checkout.place)
            except ExecError as error:
                slot.expire(f"the slot could not be reset: {error}")
                raise_seen(await box.explain_loss(error), error)
            if not outcome.clean:
                checkout.watch.see(outcome.killed, outcome.reason)
                slot.expire(f"the slot could not be proven clean: {outcome.reason}")
                raise ExecError(f"the slot could not be proven clean: {outcome.reason}", sandbox=box.id)
            self.fleet.emit(
                Reset(
                    time=time.time(), sandbox=box.id, slot=slot.id, killed=outcome.killed, profile=box.template.profile
                )
            )
            if outcome.reusable:
                await box.provision(checkout.place, slot.renew())
        if not outcome.reusable:
            logger.debug("slot %s goes to another box: %s", slot.id, outcome.reason)
            await self._move(checkout)

    async def _move(self, checkout: Checkout) -> None:
        """Let a slot that is held go on in another box of its kind: a reset does not undo what was changed in this one.

        Raises as `SandboxPool.acquire`; the slot is closed then.
        """
        slot, template = checkout.slot, checkout.box.template
        checkout.moving = anyio.Event()
        try:
            self.fleet.background(partial(self._take_back, checkout.box, checkout.place), f"take back {slot.id}")
            (other,) = await self.acquire(template, 1, template.config.acquire_timeout_s, owner=None)
            new = self.by_slot.pop(other.id)
            checkout.box, checkout.place, checkout.watch = new.box, new.place, new.watch
            slot.move(other)
        except BaseException as error:
            self.by_slot.pop(slot.id, None)
            slot.expire(f"the slot could not go on in another box: {error}")
            raise
        finally:
            checkout.moving.set()
            checkout.moving = None


async def _together(work: Callable[..., Coroutine[Any, Any, None]], arguments: list[tuple[Any, ...]]) -> None:
    """Call something for each of these arguments at the same time; without a task where there is only one."""
    if len(arguments) == 1:
        await work(*arguments[0])
        return
    async with anyio.create_task_group() as tasks:
        for each in arguments:
            tasks.start_soon(work, *each)
