"""Waiting in line for slots, and why it took too long."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio

from hermes_exec.errors import (
    AcquireTimeout,
    BackendUnavailable,
    ConfigError,
    ErrorCause,
    ExecError,
    LaunchError,
    SlotClosed,
)
from hermes_exec.pool.fleet import Fleet
from hermes_exec.pool.plan import Fail, Lend
from hermes_exec.pool.sandbox import PooledSandbox, SlotPlace
from hermes_exec.pool.state import Phase, Waiter
from hermes_exec.pool.templates import Template


@dataclass(slots=True)
class Ticket:
    """What one waiter in the queue is given: places or an error."""

    waiter: Waiter
    done: anyio.Event = field(default_factory=anyio.Event)
    places: list[tuple[PooledSandbox, SlotPlace]] = field(default_factory=list)
    error: ExecError | None = None
    doing: str = ""
    """What was still being done in a slot for it when it left."""


class Queue:
    """The waiters of a pool. Runs the planner through the fleet, and hands its decisions to the waiters."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._tickets: dict[int, Ticket] = {}

    def serve(self) -> None:
        """Run the planner and hand the waiters what it decides."""
        for action in self.fleet.reconcile():
            if isinstance(action, Lend):
                self._hand_over(action)
            else:
                self._fail(action)

    def enter(self, template: Template, *, slots: int, boxes: int = 0) -> Ticket:
        """Add a waiter at the end of the queue."""
        waiter = self.fleet.state.enqueue(template.key, anyio.current_time(), slots=slots, boxes=boxes)
        ticket = self._tickets[waiter.id] = Ticket(waiter)
        return ticket

    def enter_again(self, ticket: Ticket) -> None:
        """Put a waiter whose places were unusable back at its old position."""
        self.fleet.state.requeue(ticket.waiter)
        ticket.done = anyio.Event()
        self._tickets[ticket.waiter.id] = ticket

    async def wait(self, ticket: Ticket) -> None:
        """Wait until there are places for a waiter, or until its boxes are ready.

        Raises:
            ExecError: launches for it failed, or the pool was closed.
        """
        self.serve()
        if not ticket.done.is_set():
            await ticket.done.wait()
        if ticket.error is not None:
            raise ticket.error

    def leave(self, ticket: Ticket) -> None:
        """Remove a waiter; harmless when it is no longer in the queue."""
        self._tickets.pop(ticket.waiter.id, None)
        self.fleet.state.waiters.pop(ticket.waiter.id, None)

    async def warm(self, template: Template, count: int, timeout_s: float) -> None:
        """Wait until so many boxes of a template are ready."""
        ticket = self.enter(template, slots=0, boxes=count)
        with anyio.move_on_after(timeout_s):
            try:
                await self.wait(ticket)
            except BaseException:
                self.leave(ticket)
                self.serve()
                raise
        if not ticket.done.is_set():
            raise self.timed_out(template, ticket, timeout_s)

    def close(self) -> None:
        """Tell all waiters that the pool is closed."""
        for ticket in self._tickets.values():
            ticket.error = SlotClosed("the pool was closed")
            ticket.done.set()

    def _hand_over(self, lend: Lend) -> None:
        self.fleet.state.lend(lend.waiter, lend.shares)
        ticket = self._tickets.pop(lend.waiter.id)
        for box_id, count in lend.shares.items():
            box = self.fleet.boxes[box_id]
            free = [place for place in box.places if not place.lent and not place.quarantined][:count]
            for place in free:
                place.lent, place.doing = True, ""
                ticket.places.append((box, place))
        ticket.done.set()

    def _fail(self, fail: Fail) -> None:
        del self.fleet.state.waiters[fail.waiter.id]
        ticket = self._tickets.pop(fail.waiter.id)
        ticket.error = self._launch_error(fail.waiter.template)
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
        # What an error of ours tells, the text has already.
        error.__cause__ = None if isinstance(last, ExecError) else last
        return error

    def timed_out(self, template: Template, ticket: Ticket, timeout_s: float) -> ExecError:
        """The error for a waiter whose time is over: what it waited for, and what the pool has."""
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
            f"no slot within {timeout_s:g} s: waited for {max(1, waiter.slots)} of {template.key}, which has "
            f"{lent} lent and {free} free; "
            f"{ahead} requests were ahead; {told}, at most {self.fleet.templates.max_sandboxes}"
        )
        if quarantined := sum(box.quarantined for box in records):
            text += f"; {quarantined} could not be proven clean, and are lent no more"
        boxes_here = (self.fleet.boxes[box.id] for box in records if box.suspect and box.id in self.fleet.boxes)
        if full := [box.id for box in boxes_here if box.disk_full]:
            text += f"; no new slots of {', '.join(full)} until a disk that is nearly full has room"
        if history.error is not None:
            text += f"; the last launch failed: {history.error}"
        # A full disk is no matter of the caller's time.
        error = AcquireTimeout(text, cause=ErrorCause.INFRA if full else None)
        error.__cause__ = history.error
        return error
