"""The sandboxes of a pool: carries out the planner's decisions. All the I/O of a pool, and no policy."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from secrets import token_hex

import anyio
from anyio import to_thread

from hermes_exec.aio.tasks import DetachedTaskGroup
from hermes_exec.backends.base import Backend, Labels, NoOwnRoot, ReapFilter, Sandbox
from hermes_exec.backends.capabilities import HasDeadline, HasSlotCount
from hermes_exec.backends.engine_errors import end_with_retries
from hermes_exec.channel.keepalive import KEEPALIVE_THREAD
from hermes_exec.errors import BackendUnavailable, ExecError, LaunchError, PostMortem, QuotaExceeded
from hermes_exec.pool.closed_loop import ClosedLoopWatch
from hermes_exec.pool.decisions import Close, Fail, Grant, HandOver, Launch, PlanConfig
from hermes_exec.pool.events import EventHub
from hermes_exec.pool.launch import OnPull, launch_sandbox, start_sandbox
from hermes_exec.pool.pace import wait_for_turn
from hermes_exec.pool.plan import plan
from hermes_exec.pool.sandbox import PooledSandbox, PooledSlot
from hermes_exec.pool.state import Phase, PoolState, SandboxRecord, SlotState
from hermes_exec.pool.template import Template
from hermes_exec.pool.templates import Templates
from hermes_exec.redact import mask
from hermes_exec.results import Died, Launched, PoolEvent, Ready, Reaped, Scaled

logger = logging.getLogger(__name__)
waiting_logger = logging.getLogger("hermes_exec.pool.waiting")
"""Reports obstacles for which requests keep waiting. The command line prints its warnings."""
SHUTDOWN_TIMEOUT_S = 2.0
MIN_DESTROY_S = 1.0
"""Minimum time to end a sandbox, in seconds, even after the deadline: the request has to be sent."""
LAST_RESORT_S = 5.0
LAUNCH_DELAYS_S = (0.5, 30.0)
"""The pause after the first failed launch, and the longest pause. Each is twice the one before."""


class Fleet:
    """The sandboxes of one entered pool. Everything runs in the pool's event loop."""

    def __init__(
        self,
        templates: Templates,
        hub: EventHub,
        labels: Labels,
        background: DetachedTaskGroup,
        on_pull: OnPull | None,
    ) -> None:
        self.on_change: Callable[[], None]
        """Called after each change that waiting requests may need. The creator of the pool sets it."""
        self.on_end: Callable[[PooledSandbox], None]
        """Called before a sandbox is closed, and when it has died."""
        self.hand_over: Callable[[PooledSandbox], Awaitable[None]]
        """Moves the checkpoints of a sandbox to others."""
        self.templates = templates
        self.hub = hub
        self.labels = labels
        self._background = background
        self.state = PoolState()
        self.sandboxes: dict[int, PooledSandbox] = {}
        self.remaining: dict[int, Sandbox] = {}
        """Every launched sandbox that is not known to be gone."""
        self.launches = self.failures = self.calls_before = 0
        self.closing = False
        self.requests: Counter[str] = Counter()
        """How many requests for slots, sandboxes or images are under way, by their template."""
        self.used_at = anyio.current_time()
        """When the last request or release ended."""
        self.loop_watch = ClosedLoopWatch(self._on_loop_closed)
        # Several pools may have the same run id.
        self._name = labels.run_id if templates.config.run_id is None else f"{labels.run_id}-{token_hex(3)}"
        self._on_pull = on_pull
        self._secrets = hub.secrets
        self._launch_scopes: dict[int, anyio.CancelScope] = {}
        self._scopes: set[anyio.CancelScope] = set()
        self._settled = anyio.Event()
        self._reaped = anyio.Event()
        self._last_failure = ""
        """Why the last launch failed; empty after a success."""
        self._wake_at = self._end_at = math.inf
        templates.is_used, templates.on_forget = self._is_used, self._forget
        self._rearm = anyio.Event()

    # Planning.

    def reconcile(self) -> list[Grant | Fail]:
        """Run the planner, start its launches and closes, and return its decisions about waiting requests."""
        if self.closing:
            return []
        config = PlanConfig(
            self.templates.max_sandboxes, self.templates.sizes(), self.templates.backend.launches_at_once
        )
        decision = plan(self.state, config, anyio.current_time())
        before = len(self.state.sandboxes)
        for_waiters: list[Grant | Fail] = []
        for action in decision.actions:
            match action:
                case Launch(key):
                    self._begin_launch(self.templates.by_key(key))
                case Close(sandbox_id, reason):
                    self._begin_close(sandbox_id, reason)
                case HandOver(sandbox_id):
                    self._begin_hand_over(self.sandboxes[sandbox_id])
                case _:
                    for_waiters.append(action)
        if len(self.state.sandboxes) > before:
            self.emit(Scaled(time=time.time(), before=before, after=len(self.state.sandboxes), reason="demand"))
        if decision.wake_at != self._wake_at:
            self._wake_at = decision.wake_at
            self._rearm.set()
        return for_waiters

    def _is_used(self, template: str) -> bool:
        """Whether a template has requests or sandboxes."""
        return template in self.requests or any(self.state.of_template(template))

    def _forget(self, templates: list[str], backends: list[Backend]) -> None:
        for template in templates:
            self.state.launches.pop(template, None)
            self.state.uses.pop(template, None)
        for backend in backends:
            self.background(backend.aclose, f"closing {backend.name}")

    async def wake_up(self) -> None:
        """Run the planner again at the times that it asks for."""
        while True:
            pause_s = max(0.0, self._wake_at - anyio.current_time())
            self._rearm = anyio.Event()
            with anyio.move_on_after(pause_s):
                await self._rearm.wait()
                continue
            self._wake_at = math.inf
            self.on_change()

    def slot_id(self, slot: PooledSlot) -> str:
        """Return the id of a slot, unique on this host."""
        return f"{self._name}-{slot.sandbox.record.id}-{slot.name}"

    def emit(self, event: PoolEvent) -> None:
        """Send an event to all listeners."""
        self.hub.emit(event)

    def background(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Run `work` in the background; its errors are logged under `name`."""

        async def run_guarded() -> None:
            try:
                await work()
            except Exception:
                logger.exception("%s failed", name)

        self._background.tasks.start_soon(run_guarded, name=name)

    @contextmanager
    def request(self, template: str) -> Iterator[None]:
        """Count a request that is under way."""
        self.requests[template] += 1
        try:
            yield
        finally:
            self.requests[template] -= 1
            if not self.requests[template]:
                del self.requests[template]
            self.used_at = anyio.current_time()

    @contextmanager
    def until_closed(self) -> Iterator[anyio.CancelScope]:
        """Cancel the block when the pool closes."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)

    # Launching.

    def _begin_launch(self, template: Template) -> None:
        record = self.state.begin_launch(template.key, template.size.slots_per_sandbox, anyio.current_time())
        self.background(lambda: self._launch(record, template), f"launch {record.id}")

    async def _launch(self, record: SandboxRecord, template: Template) -> None:
        started = time.monotonic()
        try:
            with anyio.CancelScope() as scope:
                self._launch_scopes[record.id] = scope
                sandbox = await self._bring_up(record, template, started)
        except Exception as error:
            if not isinstance(error, ExecError | OSError):
                logger.exception("a launch failed unexpectedly")
            self._handle_failed_launch(record, error)
            return
        finally:
            self._launch_scopes.pop(record.id, None)
            self._settled.set()
        if scope.cancelled_caught:
            self.state.remove(record)
            return
        if sandbox.death is not None or sandbox.channel.state in ("lost", "closed"):
            await self.destroy(sandbox.handle)
            self._handle_failed_launch(
                record, LaunchError(f"the sandbox died while it was started: {sandbox.channel.lost_reason}")
            )
            return
        sandbox.channel.on_lost = lambda why: self._on_lost(sandbox, why)
        self.sandboxes[record.id] = sandbox
        if isinstance(sandbox.handle, HasDeadline):
            record.ends_at = anyio.current_time() + sandbox.handle.ends_at - time.monotonic()
        self.state.complete_launch(record, sandbox.slots, anyio.current_time())
        self.launches += 1
        self._last_failure = ""
        took = time.monotonic() - started
        self.emit(
            Ready(time=time.time(), sandbox=sandbox.id, profile=template.profile, slots=record.size, duration_s=took)
        )
        self.on_change()

    def _handle_failed_launch(self, record: SandboxRecord, error: Exception) -> None:
        self.failures += 1
        retryable = isinstance(error, ExecError) and error.retryable
        away = retryable and isinstance(error, BackendUnavailable | QuotaExceeded)
        message = mask(str(error), self._secrets)
        if not away:
            logger.warning("launching a sandbox failed: %s", message)
        elif message != self._last_failure:
            waiting_logger.warning("no sandbox available, requests keep waiting: %s", message)
        self._last_failure = message
        now = anyio.current_time()
        self.state.fail_launch(record, error, now, LAUNCH_DELAYS_S, hopeless=not retryable, away=away)
        self.on_change()

    async def _bring_up(self, record: SandboxRecord, template: Template, started: float) -> PooledSandbox:
        try:
            return await self._launch_and_start(record, template, started)
        except NoOwnRoot as error:
            template.own_roots.refuse(error)
            # A sandbox opened for private roots cannot serve slots that share its root: launch another one.
            return await self._launch_and_start(record, template, started)

    async def _launch_and_start(self, record: SandboxRecord, template: Template, started: float) -> PooledSandbox:
        backend = self.templates.backend
        if backend.creates_per_s is not None:
            await wait_for_turn(type(backend).backend, backend.creates_per_s)
        sandbox = await launch_sandbox(record, template, self.labels, self._on_pull, self.destroy)
        self.remaining[id(sandbox)] = sandbox
        KEEPALIVE_THREAD.add(self.loop_watch)
        if isinstance(sandbox, HasSlotCount) and sandbox.slots is not None:
            record.size = sandbox.slots
        self.emit(
            Launched(
                time=time.time(),
                sandbox=sandbox.id,
                profile=template.profile,
                backend=template.backend.name,
                image=template.image,
                duration_s=time.monotonic() - started,
            )
        )
        trace = None if self.hub.tracer is None else self.hub.tracer.for_sandbox(sandbox.id)
        return await start_sandbox(
            record, template, sandbox, lambda run: self.background(run, "channel"), self.destroy, trace
        )

    # Ending.

    async def destroy(self, sandbox: Sandbox) -> None:
        """End a sandbox, shielded from cancellation. On failure it stays in `remaining` for the last resort."""
        began = anyio.current_time()
        until = max(began + MIN_DESTROY_S, min(self._end_at, began + self.templates.config.shutdown_timeout_s))
        with anyio.CancelScope(shield=True, deadline=until) as scope:
            if (failure := await end_with_retries(sandbox.destroy)) is not None:
                logger.warning("sandbox %s could not be ended: %s", sandbox.id, mask(str(failure), self._secrets))
                return
        if scope.cancelled_caught:
            logger.warning("sandbox %s was not ended within %.3g s", sandbox.id, until - began)
            return
        self.remaining.pop(id(sandbox), None)

    def _begin_close(self, sandbox_id: int, reason: str) -> None:
        record, sandbox = self.state.sandboxes[sandbox_id], self.sandboxes[sandbox_id]
        record.phase = Phase.CLOSING
        self.on_end(sandbox)
        self.background(lambda: self._close(sandbox, reason), f"close {sandbox.id}")

    def _begin_hand_over(self, sandbox: PooledSandbox) -> None:
        sandbox.record.handing_over = True
        self.background(lambda: self.hand_over(sandbox), f"hand over {sandbox.id}")

    async def _close(self, sandbox: PooledSandbox, reason: str) -> None:
        sandbox.channel.on_lost = None
        await self.end_sandbox(sandbox)
        before = len(self.state.sandboxes)
        self.state.remove(sandbox.record)
        self.sandboxes.pop(sandbox.record.id, None)
        self.calls_before += sandbox.channel.calls
        self.emit(Scaled(time=time.time(), sandbox=sandbox.id, before=before, after=before - 1, reason=reason))
        self.on_change()

    async def end_sandbox(self, sandbox: PooledSandbox) -> None:
        """Shut down the runner and end the sandbox; shielded and bounded in time."""
        with anyio.move_on_after(SHUTDOWN_TIMEOUT_S, shield=True):
            await sandbox.channel.aclose(shutdown=True)
        await self.destroy(sandbox.handle)

    def _on_lost(self, sandbox: PooledSandbox, why: ExecError) -> None:
        if sandbox.record.phase is Phase.READY and not self.closing:
            sandbox.record.phase = Phase.LOST
            self.background(lambda: self._handle_loss(sandbox, why), f"lost {sandbox.id}")

    async def _handle_loss(self, sandbox: PooledSandbox, why: ExecError) -> None:
        """Handle a lost channel: wait while the sandbox's state is unknown, at most for its lease, then give it up."""
        deadline = anyio.current_time() + sandbox.template.config.lease_s + 10.0
        pause_s = 0.1
        while (status := await sandbox.status()).state == "unknown" and anyio.current_time() < deadline:
            await anyio.sleep(pause_s)
            pause_s = min(5.0, pause_s * 2)
        if sandbox.death is None:
            sandbox.death = PostMortem(reason=f"its channel was lost: {why} (the sandbox is {status.state})")
        self.mark_dead(sandbox)

    def mark_dead(self, sandbox: PooledSandbox) -> None:
        """Give up a dead or unusable sandbox: fail the calls of its holders, forget it, and destroy its remains."""
        if sandbox.record.id not in self.sandboxes or sandbox.record.phase is Phase.CLOSING:
            return
        held = sandbox.record.count(SlotState.HELD)
        death = sandbox.death or PostMortem("the sandbox has ended")
        del self.sandboxes[sandbox.record.id]
        self.state.remove(sandbox.record)
        self.on_end(sandbox)
        self.calls_before += sandbox.channel.calls
        sandbox.channel.on_lost = None
        sandbox.channel.fail(sandbox.death_error())
        logger.warning("sandbox %s died: %s", sandbox.id, death.reason)
        self.emit(
            Died(
                time=time.time(),
                sandbox=sandbox.id,
                profile=sandbox.template.profile,
                post_mortem=death,
                slots_in_use=held,
            )
        )
        self.background(lambda: self.destroy(sandbox.handle), f"remove {sandbox.id}")
        self.on_change()

    # Start and shutdown of the pool.

    async def reap_orphans(self) -> None:
        """End the sandboxes of drivers that are gone; skip a backend that cannot be reached."""
        try:
            for backend in self.templates.backends:
                await self._reap_orphans_of(backend)
        finally:
            self._reaped.set()

    async def _reap_orphans_of(self, backend: Backend) -> None:
        try:
            for reaped in await backend.reap(ReapFilter(orphans=True)):
                self.emit(
                    Reaped(
                        time=time.time(),
                        sandbox=reaped.sandbox,
                        backend=reaped.backend,
                        run_id=reaped.run_id,
                        reason=reaped.reason,
                    )
                )
        except (ExecError, OSError) as error:
            message = mask(str(error), self._secrets)
            logger.debug("could not look for orphans of %s: %s", backend.name, message)

    async def shut_down(self) -> None:
        """End every launch and every sandbox, shielded from cancellation. Also wait for the reaping of orphans that
        began when the pool opened. After `shutdown_timeout_s` nothing more is waited for.
        """
        self.closing = True
        KEEPALIVE_THREAD.remove(self.loop_watch)
        for scope in (*self._launch_scopes.values(), *self._scopes):
            scope.cancel()
        self._end_at = anyio.current_time() + self.templates.config.shutdown_timeout_s
        with anyio.CancelScope(shield=True, deadline=self._end_at):
            async with anyio.create_task_group() as ending:
                for sandbox in list(self.sandboxes.values()):
                    sandbox.channel.on_lost = None
                    ending.start_soon(self.end_sandbox, sandbox)
                if not self._background.tasks.cancel_scope.cancel_called:
                    ending.start_soon(self._reaped.wait)
                while self._launch_scopes:
                    self._settled = anyio.Event()
                    await self._settled.wait()
        if self.remaining:
            with anyio.move_on_after(LAST_RESORT_S, shield=True):
                await to_thread.run_sync(self.destroy_now, LAST_RESORT_S, abandon_on_cancel=True)
        for sandbox in self.sandboxes.values():
            self.calls_before += sandbox.channel.calls
            self.state.remove(sandbox.record)
        self.sandboxes.clear()

    def _on_loop_closed(self) -> None:
        if not self.closing:
            self.closing = True
            logger.warning("the event loop of a pool was closed before the pool: its sandboxes are ended")
            self.destroy_now(self.templates.config.shutdown_timeout_s)

    def destroy_now(self, within_s: float) -> None:
        """End the remaining sandboxes without an event loop. Errors are logged; after `within_s` seconds no further one
        is begun.
        """
        until = time.monotonic() + within_s
        for key, sandbox in list(self.remaining.items()):
            if time.monotonic() > until:
                logger.warning("%d sandboxes are left; their leases will end them", len(self.remaining))
                return
            try:
                sandbox.destroy_now()
            except Exception:
                logger.exception("sandbox %s could not be ended", sandbox.id)
            else:
                self.remaining.pop(key, None)
