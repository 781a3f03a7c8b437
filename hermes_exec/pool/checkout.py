"""Lends slots, moves them to another box, and takes them back."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from hermes_exec.errors import ChannelLost, ConfigError, ExecError, OutcomeUnknown, ProtocolError, SandboxDied
from hermes_exec.pool.fleet import Fleet, waiting_logger
from hermes_exec.pool.queue import Queue, Ticket
from hermes_exec.pool.recycle import Recycler
from hermes_exec.pool.sandbox import KillWatch, PooledSandbox, SlotPlace
from hermes_exec.pool.state import Phase
from hermes_exec.pool.templates import Template
from hermes_exec.results import Lent, Reset
from hermes_exec.slot.scope import raise_seen
from hermes_exec.slot.slot import Slot
from hermes_exec.slot.tenancy import Tenancy

logger = logging.getLogger(__name__)
RECHECK_S = 1.0
HELD_SILENCE_S = 30.0
"""A holder's reset waits through this much silence: a machine that is far too busy for seconds costs no episode."""
TRANSPORT = (ChannelLost, OutcomeUnknown, ProtocolError, SandboxDied)


@dataclass(slots=True)
class Checkout:
    """A slot that somebody holds."""

    slot: Slot
    tenancy: Tenancy
    box: PooledSandbox
    place: SlotPlace
    watch: KillWatch
    workdir: str | None = None
    returned: anyio.Event | None = None
    moving: anyio.Event | None = None
    """Set while the slot moves to another box: there is nothing to give back until that is done."""


class Checkouts:
    """The slots of one pool that somebody holds."""

    def __init__(self, fleet: Fleet, queue: Queue) -> None:
        self.fleet = fleet
        self.queue = queue
        self.recycler = Recycler(fleet)
        self.by_slot: dict[str, Checkout] = {}
        self.waits: deque[float] = deque(maxlen=1000)
        self.acquired = 0

    async def acquire(
        self, template: Template, count: int, timeout_s: float, owner: str | None, workdir: str | None
    ) -> list[Slot]:
        """Wait for slots and make them ready. Raises as `SandboxPool.acquire`."""
        began = time.monotonic()
        ticket = self.queue.enter(template, slots=count)
        slots: list[Slot] | None = None
        with anyio.move_on_after(timeout_s) as scope:
            try:
                await self.queue.wait(ticket)
                while (slots := await self._prepare(ticket, workdir)) is None:
                    self.queue.enter_again(ticket)
                    await self.queue.wait(ticket)
            except BaseException:
                self._withdraw(ticket)
                raise
        if slots is None:
            assert scope.cancelled_caught
            raise self.queue.timed_out(template, ticket, timeout_s)
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

    def _withdraw(self, ticket: Ticket) -> None:
        """Remove a waiter, and take back the places that it was given."""
        self.queue.leave(ticket)
        ticket.doing = next((place.doing for _, place in ticket.places if place.doing), "")
        for box, place in ticket.places:
            self.recycler.begin_take_back(box, place)
        ticket.places = []
        self.fleet.on_change()

    async def _prepare(self, ticket: Ticket, workdir: str | None) -> list[Slot] | None:
        """Make the lent places into slots; None when a box turned out to be gone, and the places were given back."""
        made: list[Checkout | None] = [None] * len(ticket.places)
        failures: list[ExecError] = []

        async def one(index: int, box: PooledSandbox, place: SlotPlace) -> None:
            try:
                made[index] = await self._prepare_slot(box, place, workdir)
            except ExecError as error:
                failures.append(error)

        async def see(box: PooledSandbox) -> None:
            if not await box.ping():
                failures.append(ChannelLost("the box does not answer", sandbox=box.id))
                await self._suspect(box)
            elif box.disk_full:
                waiting_logger.warning(
                    "the disk of %s is nearly full: it gets no new slots until there is room", box.id
                )
                failures.append(ChannelLost("the disk of the sandbox is nearly full", sandbox=box.id))
                self._set_aside(box)

        await _together(see, [(box,) for box in {id(box): box for box, _ in ticket.places}.values()])
        if not failures:
            await _together(one, [(index, *pair) for index, pair in enumerate(ticket.places)])
        if not failures:
            ready = [checkout for checkout in made if checkout is not None]
            for checkout in ready:
                checkout.place.held = True
                self.by_slot[checkout.slot.id] = checkout
            self.acquired += len(ready)
            ticket.places = []
            return [checkout.slot for checkout in ready]
        fatal = [error for error in failures if not isinstance(error, TRANSPORT)]
        if fatal:
            raise fatal[0]
        for box, place in ticket.places:
            self.recycler.begin_take_back(box, place)
        ticket.places = []
        return None

    async def _prepare_slot(self, box: PooledSandbox, place: SlotPlace, workdir: str | None) -> Checkout:
        """Create the slot if needed, and provision it."""
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

        start = box.workdir(workdir)
        tenancy = Tenancy(facts, start, box.id, lambda: box.scope(place, watch))
        slot = Slot(
            id=self.fleet.slot_id(box, place),
            tenancy=tenancy,
            backend=box.template.backend.name,
            image=box.template.image,
            reset=reset,
            network=box.template.config.network,
            own_loopback=not box.template.backend.private_root,
            browser=box.template.config.browser,
        )
        checkout = Checkout(slot, tenancy, box, place, watch, workdir)
        place.touched = True
        try:
            await box.provision(place, tenancy.scope, start)
        except BaseException:
            await tenancy.end("the slot could not be prepared")
            raise
        return checkout

    async def _suspect(self, box: PooledSandbox) -> None:
        """Handle a box that does not answer: give it up if it is dead, else lend nothing of it until it answers."""
        status = await box.status()
        if status.state == "dead":
            self.fleet.mark_dead(box)
        else:
            self._set_aside(box)

    def _set_aside(self, box: PooledSandbox) -> None:
        """Lend nothing of a box until it answers, and its disk has room."""
        if box.record.phase is Phase.READY and not box.record.suspect:
            box.record.suspect = True
            self.fleet.background(lambda: self._recheck(box), f"recheck {box.id}")

    async def _recheck(self, box: PooledSandbox) -> None:
        while box.record.phase is Phase.READY and box.record.id in self.fleet.boxes:
            await anyio.sleep(RECHECK_S)
            if await box.ping() and not box.disk_full:
                box.record.suspect = False
                self.fleet.on_change()
                return

    def close(self) -> None:
        """Tell all holders that the pool is closed."""
        for checkout in self.by_slot.values():
            checkout.place.held = False
            checkout.tenancy.expire("the pool was closed")
            if checkout.returned is not None:
                checkout.returned.set()
        self.by_slot.clear()

    async def release(self, slot: Slot) -> None:
        """Take a slot back and reset it. Harmless when it is already back."""
        checkout = self.by_slot.get(slot.id)
        if checkout is None or checkout.slot is not slot:
            if not slot.closed:
                raise ConfigError(f"slot {slot.id} is lent by another pool, which has to take it back")
            return
        if checkout.returned is None:
            checkout.returned = anyio.Event()
            checkout.tenancy.expire("the slot was released")
            self.fleet.background(partial(self._return, checkout), f"reset {slot.id}")
        await checkout.returned.wait()

    async def _return(self, checkout: Checkout) -> None:
        slot = checkout.slot
        try:
            await checkout.tenancy.end("the slot was released")
            if checkout.moving is not None:
                await checkout.moving.wait()
            if self.by_slot.pop(slot.id, None) is not None:
                checkout.place.held = False
                await self.recycler.take_back(checkout.box, checkout.place, checkout.watch)
        finally:
            self.by_slot.pop(slot.id, None)
            if checkout.returned is not None:
                checkout.returned.set()

    async def _reset_held(self, checkout: Checkout) -> None:
        """`Slot.reset`: the holder keeps the slot if it is proven clean."""
        box, slot = checkout.box, checkout.slot
        with anyio.CancelScope(shield=True):
            try:
                outcome = await self.recycler.reset(box, checkout.place, HELD_SILENCE_S)
            except ExecError as error:
                checkout.tenancy.expire(f"the slot could not be reset: {error}")
                raise_seen(await box.explain_loss(error), error)
            if not outcome.clean:
                checkout.watch.see(outcome.killed, outcome.reason)
                checkout.tenancy.expire(f"the slot could not be proven clean: {outcome.reason}")
                raise ExecError(f"the slot could not be proven clean: {outcome.reason}", sandbox=box.id)
            self.fleet.emit(
                Reset(
                    time=time.time(),
                    sandbox=box.id,
                    profile=box.template.profile,
                    slot=slot.id,
                    held=True,
                    killed=outcome.killed,
                )
            )
            if outcome.reusable:
                try:
                    checkout.tenancy.facts = await box.create(checkout.place)
                    await box.provision(checkout.place, checkout.tenancy.renew(), box.workdir(checkout.workdir))
                except ExecError as error:
                    checkout.tenancy.expire(f"the slot could not be prepared after its reset: {error}")
                    raise
        if not outcome.reusable:
            logger.debug("slot %s goes to another box: %s", slot.id, outcome.reason)
            await self._move(checkout)

    async def _move(self, checkout: Checkout) -> None:
        """Let a slot that is held go on in another box: a reset does not undo what was changed in this one.

        Raises as `SandboxPool.acquire`; the slot is closed then.
        """
        slot, template = checkout.slot, checkout.box.template
        checkout.moving = anyio.Event()
        checkout.place.held = False
        try:
            self.fleet.background(
                partial(self.recycler.take_back, checkout.box, checkout.place), f"take back {slot.id}"
            )
            wait_s = template.config.acquire_timeout_s
            (other,) = await self.acquire(template, 1, wait_s, owner=None, workdir=checkout.workdir)
            new = self.by_slot.pop(other.id)
            checkout.box, checkout.place, checkout.watch = new.box, new.place, new.watch
            checkout.tenancy.move(new.tenancy)
        except BaseException as error:
            self.by_slot.pop(slot.id, None)
            checkout.tenancy.expire(f"the slot could not go on in another box: {error}")
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
