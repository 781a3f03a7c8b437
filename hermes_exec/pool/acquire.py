"""Acquiring slots: the queue, preparing slots for their holders, and the errors of requests that fail."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from hermes_exec.backends.capabilities import HasBaseDirectory
from hermes_exec.backends.sandbox_directory import parent_directory
from hermes_exec.checks import validate_timeout
from hermes_exec.errors import (
    AcquireTimeout,
    BackendUnavailable,
    ChannelLost,
    ConfigError,
    ErrorCause,
    ExecError,
    HostDiskFull,
    LaunchError,
    OutcomeUnknown,
    ProtocolError,
    SandboxDied,
    SlotClosed,
)
from hermes_exec.pool.abilities import find_abilities
from hermes_exec.pool.checkpoints import Checkpoints, SlotCheckpoints
from hermes_exec.pool.decisions import Grant
from hermes_exec.pool.fleet import Fleet, waiting_logger
from hermes_exec.pool.release import Releases
from hermes_exec.pool.request import SlotRequest
from hermes_exec.pool.sandbox import PooledSandbox, PooledSlot
from hermes_exec.pool.state import Phase, SlotState, Waiter
from hermes_exec.pool.template import SlotSettings, Template
from hermes_exec.results import Abilities, Acquired
from hermes_exec.slot.checkpoint import Checkpoint, SlotStart
from hermes_exec.slot.slot import Slot

if TYPE_CHECKING:
    from hermes_exec.config import ProfileConfig

RECHECK_S = 1.0
TRANSPORT = (ChannelLost, OutcomeUnknown, ProtocolError, SandboxDied)
T = TypeVar("T")


@dataclass(slots=True)
class Ticket:
    """One request in the queue, and its result: slots or an error."""

    waiter: Waiter
    done: anyio.Event = field(default_factory=anyio.Event)
    slots: list[PooledSlot] = field(default_factory=list)
    error: ExecError | None = None
    settings: SlotSettings | None = None
    checkpoint: Checkpoint | None = None
    doing: str = ""
    """The step of preparing a slot that was still under way when the request gave up."""


class Queue:
    """The requests of a pool, in order. Runs the planner and prepares the slots that it assigns."""

    def __init__(self, fleet: Fleet, releases: Releases, checkpoints: Checkpoints) -> None:
        self.fleet = fleet
        self.releases = releases
        self.checkpoints = checkpoints
        self.waits: deque[float] = deque(maxlen=1000)
        """How long the last 1,000 requests waited, in seconds."""
        self.acquired = 0
        self._tickets: dict[int, Ticket] = {}
        fleet.on_change = self.serve
        releases.acquire = self.acquire

    async def acquire(self, request: SlotRequest, count: int = 1) -> list[Slot]:
        """Wait for `count` slots, prepare them and return them. Raises the errors of `SandboxPool.acquire`."""
        templates = self.fleet.templates
        if request.from_ is not None:
            request = self.checkpoints.resolve(request.from_, request)
        template, settings = templates.select(request.profile, request.image)
        if request.from_ is not None:
            self.checkpoints.check_forks(request.from_, template, count)
        if not template.fitted:
            await templates.fit_gpus(request.profile, request.image)
            template, settings = templates.select(request.profile, request.image)
        with self.fleet.request(template.key):
            return await self._acquire(request, count, template, settings)

    async def _acquire(
        self,
        request: SlotRequest,
        count: int,
        template: Template,
        settings: SlotSettings,
    ) -> list[Slot]:
        templates = self.fleet.templates
        timeout_s = validate_timeout(request.timeout_s) or template.config.acquire_timeout_s
        templates.check_room(template, count)
        templates.check_workdir(request.workdir)
        began = time.monotonic()
        ticket = self._enter(template, slots=count, checkpoint=request.from_)
        ticket.settings = settings
        slots: list[Slot] | None = None
        with anyio.move_on_after(timeout_s) as scope:
            try:
                await self._wait(ticket)
                while (slots := await self._prepare(ticket, request)) is None:
                    self._enter_again(ticket)
                    await self._wait(ticket)
            except BaseException:
                self._withdraw(ticket)
                raise
        if slots is None:
            assert scope.cancelled_caught
            raise self._timeout_error(template, ticket, timeout_s)
        waited = time.monotonic() - began
        self.waits.append(waited)
        for slot in slots:
            self.fleet.emit(
                Acquired(
                    time=time.time(),
                    sandbox=slot.sandbox,
                    profile=template.profile,
                    slot=slot.id,
                    owner=request.owner,
                    waited_s=waited,
                )
            )
        return slots

    async def warm(self, template: Template, count: int) -> None:
        """Wait until `count` sandboxes of a template are ready. Raises the errors of `SandboxPool.prewarm`."""
        timeout_s = template.config.acquire_timeout_s
        ticket = self._enter(template, slots=0, sandboxes=count)
        with self.fleet.request(template.key), anyio.move_on_after(timeout_s):
            try:
                await self._wait(ticket)
            except BaseException:
                self._leave(ticket)
                self.serve()
                raise
        if not ticket.done.is_set():
            raise self._timeout_error(template, ticket, timeout_s)

    async def examine(self, profile: str | ProfileConfig | None, image: str | None) -> Abilities:
        """Return what slots of a template can have, found out once in one of its sandboxes.

        Raises the errors of `SandboxPool.abilities`.
        """
        templates = self.fleet.templates
        await templates.fit_gpus(profile, image)
        template = templates.get(profile, image)
        examination, until = template.examination, time.monotonic() + template.config.acquire_timeout_s
        examination.is_requested = True
        with self.fleet.request(template.key):
            while examination.abilities is None:
                ready = (each for each in self.fleet.sandboxes.values() if each.record.template == template.key)
                if (sandbox := next((each for each in ready if each.record.available), None)) is None:
                    await self.warm(template, 1)
                    continue
                async with examination.lock:
                    if examination.abilities is None:
                        examination.abilities = await self._examine(sandbox, until)
        return examination.abilities

    async def _examine(self, sandbox: PooledSandbox, until: float) -> Abilities | None:
        """Find out the abilities in a sandbox. Return None if it was gone and there is time to try another one."""
        failures: list[ExecError] = []
        await self._check_sandbox(failures, sandbox)
        if not failures:
            try:
                with anyio.move_on_after(until - time.monotonic()):
                    return await find_abilities(sandbox)
                failures.append(ChannelLost("the sandbox does not answer", sandbox=sandbox.id))
            except TRANSPORT as error:
                failures.append(error)
            await self._suspect(sandbox)
        if time.monotonic() >= until:
            message = f"no sandbox could be examined in time: {failures[0]}; set a larger acquire_timeout_s"
            raise AcquireTimeout(message) from failures[0]
        return None

    def serve(self) -> None:
        """Run the planner and pass its decisions to the waiting requests. Fail those whose checkpoint was dropped."""
        for ticket in list(self._tickets.values()):
            if ticket.checkpoint is not None and ticket.checkpoint.dropped:
                self._fail(ticket.waiter, self.checkpoints.loss_error(ticket.checkpoint))
        for action in self.fleet.reconcile():
            if isinstance(action, Grant):
                self._grant(action)
            else:
                checkpoint = self._tickets[action.waiter.id].checkpoint
                if checkpoint is not None and self.checkpoints.is_lost(checkpoint):
                    self._fail(action.waiter, self.checkpoints.loss_error(checkpoint))
                else:
                    self._fail(action.waiter, self._launch_error(action.waiter.template))

    def close(self) -> None:
        """Fail all waiting requests: the pool is closed."""
        for ticket in self._tickets.values():
            ticket.error = SlotClosed("the pool was closed")
            ticket.done.set()

    # Queueing.

    def _enter(
        self, template: Template, *, slots: int, sandboxes: int = 0, checkpoint: Checkpoint | None = None
    ) -> Ticket:
        name = None if checkpoint is None else checkpoint.id
        now = anyio.current_time()
        waiter = self.fleet.state.enqueue(template.key, now, slots=slots, sandboxes=sandboxes, checkpoint=name)
        ticket = self._tickets[waiter.id] = Ticket(waiter, checkpoint=checkpoint)
        return ticket

    def _enter_again(self, ticket: Ticket) -> None:
        """Put a request whose slots were unusable back at its old position."""
        self.fleet.state.requeue(ticket.waiter)
        ticket.done = anyio.Event()
        self._tickets[ticket.waiter.id] = ticket

    async def _wait(self, ticket: Ticket) -> None:
        """Wait until the request has its slots, or its sandboxes are ready.

        Raises:
            ExecError: If its launches failed, or the pool was closed, also while its slots were prepared.
        """
        if self.fleet.closing:
            raise SlotClosed("the pool was closed")
        self.serve()
        if not ticket.done.is_set():
            await ticket.done.wait()
        if ticket.error is not None:
            raise ticket.error

    def _leave(self, ticket: Ticket) -> None:
        """Remove a request from the queue, if it is still there."""
        self._tickets.pop(ticket.waiter.id, None)
        self.fleet.state.waiters.pop(ticket.waiter.id, None)

    def _withdraw(self, ticket: Ticket) -> None:
        """Remove a request, and return its slots to the pool."""
        self._leave(ticket)
        ticket.doing = next((slot.doing for slot in ticket.slots if slot.doing), "")
        self._give_up_slots(ticket)
        self.fleet.on_change()

    def _give_up_slots(self, ticket: Ticket) -> None:
        for slot in ticket.slots:
            self.releases.recycle_unused(slot)
        ticket.slots = []

    def _grant(self, grant: Grant) -> None:
        del self.fleet.state.waiters[grant.waiter.id]
        ticket = self._tickets.pop(grant.waiter.id)
        for sandbox_id, count in grant.shares.items():
            free = [slot for slot in self.fleet.sandboxes[sandbox_id].slots if slot.state is SlotState.FREE]
            for slot in free[:count]:
                slot.state, slot.doing = SlotState.PREPARING, ""
                ticket.slots.append(slot)
        ticket.done.set()

    # Preparing slots.

    async def _prepare(self, ticket: Ticket, request: SlotRequest) -> list[Slot] | None:
        """Prepare the slots of a request. Return None if a sandbox was gone; the slots are then back in the pool."""
        failures: list[ExecError] = []
        sandboxes = {slot.sandbox.record.id: slot.sandbox for slot in ticket.slots}
        await _run_together(partial(self._check_sandbox, failures), sandboxes.values())
        if request.from_ is not None and not failures:
            await _run_together(partial(self._bring, failures, request.from_, ticket), sandboxes.values())
        if not failures:
            await _run_together(partial(self._prepare_slot, failures, request, ticket.settings), ticket.slots)
        if fatal := [error for error in failures if not isinstance(error, TRANSPORT)]:
            raise fatal[0]
        if failures:
            self._give_up_slots(ticket)
            return None
        slots = []
        for pooled in ticket.slots:
            assert pooled.holder is not None
            pooled.state = SlotState.HELD
            self.releases.held[pooled.holder.id] = pooled
            slots.append(pooled.holder)
        self.acquired += len(slots)
        ticket.slots = []
        return slots

    async def _check_sandbox(self, failures: list[ExecError], sandbox: PooledSandbox) -> None:
        """Check that a sandbox answers, that its disk has room, and that its machine stays in service."""
        if not await sandbox.ping():
            failures.append(ChannelLost("the sandbox does not answer", sandbox=sandbox.id))
            await self._suspect(sandbox)
        elif sandbox.disk_full:
            waiting_logger.warning(
                "the disk of %s is nearly full: it gets no new slots until there is room", sandbox.id
            )
            failures.append(ChannelLost("the disk of the sandbox is nearly full", sandbox=sandbox.id))
            self._suspend(sandbox)
        elif not sandbox.record.draining and await sandbox.is_draining():
            waiting_logger.warning("the machine of %s is drained: it gets no new slots", sandbox.id)
            failures.append(ChannelLost("the machine of the sandbox is drained", sandbox=sandbox.id))
            sandbox.record.draining = True

    async def _bring(
        self, failures: list[ExecError], checkpoint: Checkpoint, ticket: Ticket, sandbox: PooledSandbox
    ) -> None:
        """Copy the checkpoint of a request to a sandbox that does not have it."""
        for slot in (each for each in ticket.slots if each.sandbox is sandbox):
            slot.doing = f"the checkpoint was not yet copied to {sandbox.id}"
        try:
            await self.checkpoints.bring(checkpoint, sandbox)
        except ExecError as error:
            if isinstance(error, TRANSPORT):
                await self._suspect(sandbox)
            failures.append(error)
        except (OSError, TimeoutError) as error:
            failures.append(ExecError(f"the checkpoint cannot be copied to {sandbox.id}: {error}", sandbox=sandbox.id))
        for slot in (each for each in ticket.slots if each.sandbox is sandbox):
            slot.doing = ""

    async def _prepare_slot(
        self, failures: list[ExecError], request: SlotRequest, settings: SlotSettings | None, pooled: PooledSlot
    ) -> None:
        """Create a slot if needed, and provision it for its new holder."""
        sandbox, template = pooled.sandbox, pooled.sandbox.template
        pooled.settings = settings
        start: SlotStart | None = None
        try:
            facts = await sandbox.create(pooled)
            pooled.request, pooled.touched = request, True
            if request.from_ is not None:
                start = await self._begin(pooled, request.from_)
                facts = pooled.facts or facts
        except ExecError as error:
            if isinstance(error, TRANSPORT):
                await self._suspect(sandbox)
            failures.append(error)
            return
        workdir = sandbox.workdir(pooled)
        pooled.scope = sandbox.scope(pooled, facts, workdir, start)
        slot = pooled.holder = Slot(
            id=self.fleet.slot_id(pooled),
            scope=pooled.scope,
            backend=template.backend.name,
            image=template.image,
            reset=lambda: self.releases.reset(slot),
            checkpoints=SlotCheckpoints(self.checkpoints, self.fleet.slot_id(pooled)),
            network=template.config.network,
            own_loopback=sandbox.has_own_loopback(facts),
            browser=template.config.browser,
        )
        try:
            await sandbox.provision(pooled, workdir)
        except BaseException as error:
            await pooled.calls.close("the slot could not be prepared")
            if not isinstance(error, ExecError):
                raise
            failures.append(error)

    async def _begin(self, pooled: PooledSlot, checkpoint: Checkpoint) -> SlotStart:
        """Set a slot to the checkpoint that its resets return to."""
        _, unclean, start = await pooled.sandbox.restore(pooled, checkpoint, begin=True)
        if start is None:
            pooled.unproven = unclean
            raise ExecError(f"the slot could not be set to its checkpoint: {unclean}", sandbox=pooled.sandbox.id)
        return start

    async def _suspect(self, sandbox: PooledSandbox) -> None:
        """Handle a sandbox that does not answer: give it up if it is dead, otherwise suspend it until it answers."""
        status = await sandbox.status()
        if status.state == "dead":
            self.fleet.mark_dead(sandbox)
        else:
            self._suspend(sandbox)

    def _suspend(self, sandbox: PooledSandbox) -> None:
        """Assign no slots of a sandbox until it answers and its disk has room."""
        if sandbox.record.phase is Phase.READY and not sandbox.record.suspect:
            sandbox.record.suspect, sandbox.suspended_at = True, time.monotonic()
            self.fleet.background(lambda: self._recheck(sandbox), f"recheck {sandbox.id}")

    async def _recheck(self, sandbox: PooledSandbox) -> None:
        while sandbox.record.phase is Phase.READY and sandbox.record.id in self.fleet.sandboxes:
            await anyio.sleep(RECHECK_S)
            if await sandbox.ping() and not sandbox.disk_full:
                sandbox.record.suspect = False
                self.fleet.on_change()
                return
            self._fail_without_room(sandbox.template)

    def _fail_without_room(self, template: Template) -> None:
        """Fail the requests for a template if its sandboxes have had full disks for `disk_wait_s`, and no holder is
        left who could remove files.
        """
        wait_s = template.config.disk_wait_s
        records = [record for record in self.fleet.state.sandboxes.values() if record.template == template.key]
        if wait_s is None or any(record.in_use or not record.suspect for record in records):
            return
        sandboxes = [each for each in self.fleet.sandboxes.values() if each.template is template]
        full = [each.disk_full and time.monotonic() - each.suspended_at >= wait_s for each in sandboxes]
        if not full or not all(full):
            return
        backend = template.backend
        at = f" ({parent_directory(backend.base_dir)})" if isinstance(backend, HasBaseDirectory) else ""
        names = ", ".join(each.id for each in sandboxes)
        for waiter in [each for each in self.fleet.state.waiters.values() if each.template == template.key]:
            message = (
                f"no slot, because the disk of {names}{at} is nearly full: remove files there, or use another disk"
            )
            self._fail(waiter, HostDiskFull(message))

    # Errors.

    def _fail(self, waiter: Waiter, error: ExecError) -> None:
        del self.fleet.state.waiters[waiter.id]
        ticket = self._tickets.pop(waiter.id)
        ticket.error = error
        ticket.done.set()

    def _launch_error(self, key: str) -> ExecError:
        history = self.fleet.state.history(key)
        last = history.error
        if isinstance(last, ConfigError | BackendUnavailable) or (isinstance(last, LaunchError) and history.hopeless):
            error: ExecError = type(last)(*last.args, cause=last.cause, retryable=last.retryable, sandbox=last.sandbox)
        else:
            error_type = type(last) if isinstance(last, LaunchError) else LaunchError
            message = f"{history.failures} launches in a row failed, the last one with: {last}"
            error = error_type(message)
            if isinstance(last, ExecError):
                error.cause, error.retryable = last.cause, last.retryable
        # The message already contains the text of our own errors.
        error.__cause__ = None if isinstance(last, ExecError) else last
        return error

    def _timeout_error(self, template: Template, ticket: Ticket, timeout_s: float) -> ExecError:
        """Return the error for a request that timed out, with the state of the pool."""
        if ticket.doing:
            return AcquireTimeout(f"no slot within {timeout_s:g} s: a slot was free, but {ticket.doing}")
        waiter = ticket.waiter
        records = [sandbox for sandbox in self.fleet.state.sandboxes.values() if sandbox.template == template.key]
        history = self.fleet.state.history(template.key)
        if history.error is not None and history.seen >= waiter.id and not any(sandbox.healthy for sandbox in records):
            return self._launch_error(template.key)
        sandboxes = self.fleet.state.sandboxes.values()
        counts = ((phase.value, sum(sandbox.phase is phase for sandbox in sandboxes)) for phase in Phase)
        sandbox_counts = ", ".join(f"{count} {name}" for name, count in counts if count) or "no sandboxes"
        kept = sum(sandbox.checkpoints > 0 for sandbox in sandboxes)
        ahead = sum(
            other.id < waiter.id and other.template == template.key for other in self.fleet.state.waiters.values()
        )
        free, in_use = sum(sandbox.free for sandbox in records), sum(sandbox.in_use for sandbox in records)
        text = (
            f"no slot within {timeout_s:g} s: waited for {max(1, waiter.slots)} of {template.key}, which has "
            f"{in_use} in use and {free} free; "
            f"{ahead} requests were ahead; {sandbox_counts}, at most {self.fleet.templates.max_sandboxes}"
        )
        if kept:
            text += f"; {kept} sandboxes are kept for checkpoints: drop those that are no longer needed"
        if under_way := next((each for each in records if each.phase is Phase.LAUNCHING and each.doing), None):
            ago_s, longest_s = anyio.current_time() - under_way.launched_at, template.config.pull_timeout_s
            text += (
                f"; a launch began {ago_s:.0f} s ago: {under_way.doing}. It goes on while the pool is open, for "
                f"pull_timeout_s={longest_s:g} at most: acquire again, or set a larger acquire_timeout_s"
            )
        if quarantined := sum(sandbox.quarantined for sandbox in records):
            text += f"; {quarantined} could not be proven clean and are quarantined"
        sandboxes_here = (
            self.fleet.sandboxes[sandbox.id]
            for sandbox in records
            if sandbox.suspect and sandbox.id in self.fleet.sandboxes
        )
        if full := [sandbox.id for sandbox in sandboxes_here if sandbox.disk_full]:
            text += f"; no new slots of {', '.join(full)} until a disk that is nearly full has room"
        if history.error is not None:
            text += f"; the last launch failed: {history.error}"
        # A full disk is not the fault of the caller's timeout.
        error = AcquireTimeout(text, cause=ErrorCause.INFRA if full else None)
        error.__cause__ = history.error
        return error


async def _run_together(work: Callable[[T], Coroutine[Any, Any, None]], items: Iterable[T]) -> None:
    """Run `work` for each item concurrently; for a single item, without a new task."""
    # Not the obvious code: see docs/why-not-obvious.md ("No task for a single item").
    first, *others = items
    if not others:
        await work(first)
        return
    async with anyio.create_task_group() as tasks:
        for each in (first, *others):
            tasks.start_soon(work, each)
