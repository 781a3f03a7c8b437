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
from hermes_exec.pool.fleet import Keeper
from hermes_exec.pool.sandbox import Box, KillWatch, Place, ResetOutcome
from hermes_exec.pool.state import Phase, Waiter
from hermes_exec.pool.templates import Kind
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
    places: list[tuple[Box, Place]] = field(default_factory=list)
    error: ExecError | None = None
    doing: str = ""
    """What was still being done in a slot for it when it was withdrawn."""


@dataclass(slots=True)
class Lending:
    """A slot that somebody holds."""

    slot: Slot
    box: Box
    place: Place
    watch: KillWatch
    returned: anyio.Event | None = None
    moving: anyio.Event | None = None
    """Set while the slot goes to another box: until then there is nothing to give back."""


class Lender:
    """The slots of one pool. It tells the keeper of every change, and the keeper lets the planner decide."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.lendings: dict[str, Lending] = {}
        self.waits: deque[float] = deque(maxlen=1000)
        self._tickets: dict[int, Ticket] = {}
        keeper.lender = self

    def held(self, box: Box) -> int:
        """How many slots of a box are lent."""
        return sum(lending.box is box and lending.moving is None for lending in self.lendings.values())

    def hand_over(self, waiter: Waiter, shares: dict[int, int]) -> None:
        """The planner has slots for a waiter."""
        self.keeper.ledger.lend(waiter, shares)
        ticket = self._tickets.pop(waiter.id)
        for box_id, count in shares.items():
            box = self.keeper.boxes[box_id]
            free = [place for place in box.places if not place.lent and not place.quarantined][:count]
            for place in free:
                place.lent, place.doing = True, ""
                ticket.places.append((box, place))
        ticket.done.set()

    def fail(self, waiter: Waiter) -> None:
        """The planner gives a waiter up."""
        del self.keeper.ledger.waiters[waiter.id]
        ticket = self._tickets.pop(waiter.id)
        ticket.error = self._launch_error(waiter.kind)
        ticket.done.set()

    def _launch_error(self, key: str) -> ExecError:
        record = self.keeper.ledger.record(key)
        last = record.error
        if isinstance(last, ConfigError | BackendUnavailable) or (isinstance(last, LaunchError) and record.hopeless):
            error: ExecError = type(last)(*last.args, cause=last.cause, retryable=last.retryable, sandbox=last.sandbox)
        else:
            kind = type(last) if isinstance(last, LaunchError) else LaunchError
            said = f"{record.failures} launches in a row failed, the last one with: {last}"
            error = kind(said)
            if isinstance(last, ExecError):
                error.cause, error.retryable = last.cause, last.retryable
        error.__cause__ = last
        return error

    async def acquire(self, kind: Kind, count: int, timeout_s: float, owner: str | None) -> list[Slot]:
        """Wait for slots and make them ready. Raises as `SandboxPool.acquire`."""
        began = time.monotonic()
        waiter = self.keeper.ledger.enqueue(kind.key, anyio.current_time(), slots=count)
        ticket = Ticket(waiter)
        slots: list[Slot] | None = None
        with anyio.move_on_after(timeout_s) as scope:
            while slots is None:
                ticket = self._tickets[waiter.id] = Ticket(waiter)
                try:
                    self.keeper.settle()
                    if not ticket.done.is_set():
                        await ticket.done.wait()
                    if ticket.error is not None:
                        raise ticket.error
                    slots = await self._prepare(kind, ticket)
                    if slots is None:
                        self.keeper.ledger.requeue(waiter)
                except BaseException:
                    self._withdraw(ticket)
                    raise
        if slots is None:
            assert scope.cancelled_caught
            raise self._timed_out(kind, ticket, timeout_s)
        waited = time.monotonic() - began
        self.waits.append(waited)
        for slot in slots:
            self.keeper.emit(
                Lent(
                    time=time.time(),
                    sandbox=slot.sandbox,
                    profile=kind.profile,
                    slot=slot.id,
                    owner=owner,
                    waited_s=waited,
                )
            )
        return slots

    async def warm(self, kind: Kind, count: int, timeout_s: float) -> None:
        """Wait until so many boxes of a kind are ready."""
        waiter = self.keeper.ledger.enqueue(kind.key, anyio.current_time(), slots=0, boxes=count)
        ticket = self._tickets[waiter.id] = Ticket(waiter)
        with anyio.move_on_after(timeout_s):
            try:
                self.keeper.settle()
                await ticket.done.wait()
            except BaseException:
                self._withdraw(ticket)
                raise
        if ticket.error is not None:
            raise ticket.error
        if not ticket.done.is_set():
            raise self._timed_out(kind, ticket, timeout_s)

    def _withdraw(self, ticket: Ticket) -> None:
        """A waiter leaves without its slots."""
        self._tickets.pop(ticket.waiter.id, None)
        self.keeper.ledger.waiters.pop(ticket.waiter.id, None)
        ticket.doing = next((place.doing for _, place in ticket.places if place.doing), "")
        for box, place in ticket.places:
            self._begin_take_back(box, place)
        ticket.places = []
        self.keeper.settle()

    def _timed_out(self, kind: Kind, ticket: Ticket, timeout_s: float) -> ExecError:
        if ticket.doing:
            return AcquireTimeout(f"no slot within {timeout_s:g} s: one was there, but {ticket.doing}")
        waiter = ticket.waiter
        entries = [box for box in self.keeper.ledger.boxes.values() if box.kind == kind.key]
        record = self.keeper.ledger.record(kind.key)
        if record.error is not None and record.seen >= waiter.id and not any(box.healthy for box in entries):
            return self._launch_error(kind.key)
        boxes = self.keeper.ledger.boxes.values()
        counts = ((phase.value, sum(box.phase is phase for box in boxes)) for phase in Phase)
        told = ", ".join(f"{count} {name}" for name, count in counts if count) or "no sandboxes"
        ahead = sum(other.id < waiter.id and other.kind == kind.key for other in self.keeper.ledger.waiters.values())
        free, lent = sum(box.free for box in entries), sum(box.lent for box in entries)
        text = (
            f"no slot within {timeout_s:g} s: waited for {max(1, waiter.slots)} of {kind.key!r}, which has {lent} lent "
            f"and {free} free; {ahead} requests were ahead; {told}, at most {self.keeper.kinds.max_sandboxes}"
        )
        if doomed := sum(box.doomed and box.lent > 0 for box in entries):
            text += (
                f"; {doomed} of the sandboxes lend no more, for a slot there could not be proven clean, and are"
                " replaced when their lent slots are back"
            )
        if record.error is not None:
            text += f"; the last launch failed: {record.error}"
        error = AcquireTimeout(text)
        error.__cause__ = record.error
        return error

    async def _prepare(self, kind: Kind, ticket: Ticket) -> list[Slot] | None:
        """Make the lent places into slots; None when a box turned out to be gone, and the places were given back."""
        lendings: list[Lending | None] = [None] * len(ticket.places)
        failures: list[ExecError] = []

        async def one(index: int, box: Box, place: Place) -> None:
            try:
                lendings[index] = await self._outfit(box, place)
            except ExecError as error:
                failures.append(error)

        async def see(box: Box) -> None:
            if not await box.ping():
                failures.append(ChannelLost("the box does not answer", sandbox=box.id))
                await self._doubt(box)

        await _together(see, [(box,) for box in {id(box): box for box, _ in ticket.places}.values()])
        if not failures:
            await _together(one, [(index, *pair) for index, pair in enumerate(ticket.places)])
        if not failures:
            ready = [lending for lending in lendings if lending is not None]
            for lending in ready:
                self.lendings[lending.slot.id] = lending
            ticket.places = []
            return [lending.slot for lending in ready]
        fatal = [error for error in failures if not isinstance(error, TRANSPORT)]
        if fatal:
            raise fatal[0]
        for box, place in ticket.places:
            self._begin_take_back(box, place)
        ticket.places = []
        return None

    async def _outfit(self, box: Box, place: Place) -> Lending:
        """Create the slot if need be, and put into it what belongs there."""
        try:
            facts = await box.create(place)
        except TRANSPORT:
            await self._doubt(box)
            raise
        watch = KillWatch()
        lending: Lending | None = None

        async def reset() -> None:
            assert lending is not None
            await self._reset_held(lending)

        slot = Slot(
            id=self.keeper.slot_id(box, place),
            facts=facts,
            tenure=lambda: box.tenure(place, watch),
            sandbox=box.id,
            backend=box.kind.backend.name,
            image=box.kind.image,
            reset=reset,
        )
        lending = Lending(slot, box, place, watch)
        place.touched = True
        try:
            await box.furnish(place, slot.tenure)
        except BaseException:
            await slot.end("the slot could not be prepared")
            raise
        return lending

    async def _doubt(self, box: Box) -> None:
        """A box does not answer: bury it if it is dead, else lend nothing of it until it answers."""
        status = await box.status()
        if status.state == "dead":
            self.keeper.bury(box)
        elif box.entry.phase is Phase.READY and not box.entry.suspect:
            box.entry.suspect = True
            self.keeper.background(lambda: self._recheck(box), f"recheck {box.id}")

    async def _recheck(self, box: Box) -> None:
        while box.entry.phase is Phase.READY and box.entry.id in self.keeper.boxes:
            await anyio.sleep(RECHECK_S)
            if await box.ping():
                box.entry.suspect = False
                self.keeper.settle()
                return

    async def shut_down(self) -> None:
        """Tell waiters and holders that the pool is closed."""
        for ticket in list(self._tickets.values()):
            ticket.error = SlotClosed("the pool was closed")
            ticket.done.set()
        for lending in list(self.lendings.values()):
            lending.slot.expire("the pool was closed")
            if lending.returned is not None:
                lending.returned.set()
        self.lendings.clear()

    async def release(self, slot: Slot) -> None:
        """Take a slot back and reset it. Harmless when it is already back."""
        lending = self.lendings.get(slot.id)
        if lending is None or lending.slot is not slot:
            if slot.tenure.closed is None:
                raise ConfigError(f"slot {slot.id} is lent by another pool, which has to take it back")
            return
        if lending.returned is None:
            lending.returned = anyio.Event()
            slot.expire("the slot was released")
            self.keeper.background(partial(self._return, lending), f"reset {slot.id}")
        await lending.returned.wait()

    async def _return(self, lending: Lending) -> None:
        slot = lending.slot
        try:
            await slot.end("the slot was released")
            if lending.moving is not None:
                await lending.moving.wait()
            if self.lendings.pop(slot.id, None) is not None:
                await self._take_back(lending.box, lending.place, lending)
        finally:
            self.lendings.pop(slot.id, None)
            if lending.returned is not None:
                lending.returned.set()

    def _begin_take_back(self, box: Box, place: Place) -> None:
        """Take a place back that nobody got; at once where nothing was put into it."""
        if not place.touched:
            place.lent = False
            if box.entry.id in self.keeper.boxes:
                self.keeper.ledger.give_back(box.entry, anyio.current_time(), clean=True)
            return
        self.keeper.background(partial(self._take_back, box, place), "take back")

    async def _take_back(self, box: Box, place: Place, lending: Lending | None = None) -> None:
        """Reset a place and give it back to the ledger: free when it is proven clean, else quarantined."""
        name = self.keeper.slot_id(box, place)
        began = time.monotonic()
        outcome: ResetOutcome | None = None
        reason = ""
        if box.entry.id in self.keeper.boxes:
            try:
                outcome = await self._reset(box, place)
                reason = outcome.reason
            except (ExecError, OSError) as error:
                judged = await box.judge(error) if isinstance(error, ExecError) else error
                reason = str(judged)
                if isinstance(judged, SandboxDied):
                    self.keeper.bury(box)
        if box.entry.id not in self.keeper.boxes or self.keeper.closing:
            place.lent = False
            return
        left = None if lending is None else lending.watch.left
        if lending is not None and left is not None:
            reason = lending.watch.reason
        clean = outcome is not None and outcome.clean and left is None
        reusable = outcome is not None and outcome.reusable
        place.lent = place.touched = False
        place.quarantined = not clean
        now = anyio.current_time()
        self.keeper.ledger.give_back(box.entry, now, clean=clean, doom=not reusable)
        took = time.monotonic() - began
        if not clean:
            logger.warning("slot %s is quarantined: %s", name, reason)
            self.keeper.emit(Quarantined(time=time.time(), sandbox=box.id, slot=name, reason=reason))
        elif outcome is not None:
            self.keeper.emit(Reset(time=time.time(), sandbox=box.id, slot=name, duration_s=took, killed=outcome.killed))
        self.keeper.settle()

    async def _reset(self, box: Box, place: Place) -> ResetOutcome:
        """Reset a place, but do not wait for a box that has fallen silent: what comes of it then is of no interest.

        Raises:
            ExecError: as `Box.reset`, and ChannelLost when the box does not answer.
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

        self.keeper.background(work, f"reset in {box.id}")
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

    async def _reset_held(self, lending: Lending) -> None:
        """`Slot.reset`: the holder keeps the slot if it is proven clean."""
        box, slot = lending.box, lending.slot
        with anyio.CancelScope(shield=True):
            try:
                outcome = await self._reset(box, lending.place)
            except ExecError as error:
                slot.expire(f"the slot could not be reset: {error}")
                raise_seen(await box.judge(error), error)
            if not outcome.clean:
                lending.watch.see(outcome.killed, outcome.reason)
                slot.expire(f"the slot could not be proven clean: {outcome.reason}")
                raise ExecError(f"the slot could not be proven clean: {outcome.reason}", sandbox=box.id)
            self.keeper.emit(
                Reset(time=time.time(), sandbox=box.id, slot=slot.id, killed=outcome.killed, profile=box.kind.profile)
            )
            if outcome.reusable:
                await box.furnish(lending.place, slot.renew())
        if not outcome.reusable:
            logger.debug("slot %s goes to another box: %s", slot.id, outcome.reason)
            await self._move(lending)

    async def _move(self, lending: Lending) -> None:
        """Let a slot that is held go on in another box of its kind: a reset does not undo what was changed in this one.

        Raises as `SandboxPool.acquire`; the slot is closed then.
        """
        slot, kind = lending.slot, lending.box.kind
        lending.moving = anyio.Event()
        try:
            self.keeper.background(partial(self._take_back, lending.box, lending.place), f"take back {slot.id}")
            (other,) = await self.acquire(kind, 1, kind.config.acquire_timeout_s, owner=None)
            new = self.lendings.pop(other.id)
            lending.box, lending.place, lending.watch = new.box, new.place, new.watch
            slot.move(other)
        except BaseException as error:
            self.lendings.pop(slot.id, None)
            slot.expire(f"the slot could not go on in another box: {error}")
            raise
        finally:
            lending.moving.set()
            lending.moving = None


async def _together(work: Callable[..., Coroutine[Any, Any, None]], arguments: list[tuple[Any, ...]]) -> None:
    """Call something for each of these arguments at the same time; without a task where there is only one."""
    if len(arguments) == 1:
        await work(*arguments[0])
        return
    async with anyio.create_task_group() as tasks:
        for each in arguments:
            tasks.start_soon(work, *each)
