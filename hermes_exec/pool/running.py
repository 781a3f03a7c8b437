"""The parts of a pool that run while it is entered: its sandboxes, its queue and its background tasks."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from functools import partial

import anyio

from hermes_exec.aio.loop import other_loop_error, running_loop
from hermes_exec.aio.tasks import DetachedTaskGroup, ShieldedTask
from hermes_exec.backends.base import Labels
from hermes_exec.errors import SlotClosed
from hermes_exec.pool.acquire import Queue
from hermes_exec.pool.checkpoints import Checkpoints
from hermes_exec.pool.events import EventHub
from hermes_exec.pool.fleet import Fleet
from hermes_exec.pool.hand_over import HandOvers
from hermes_exec.pool.launch import OnPull
from hermes_exec.pool.observe import offer_view
from hermes_exec.pool.release import Releases
from hermes_exec.pool.templates import Templates
from hermes_exec.slot.checkpoint import Checkpoint


def register_at_exit(work: Callable[[], None]) -> Callable[[], None]:
    """Call `work` when this process ends, and return a function that cancels this.

    Workers of `multiprocessing` end without `atexit`, and run the finalizers of that package instead.
    """
    atexit.register(work)
    finalizer = None
    if "multiprocessing.util" in sys.modules:
        from multiprocessing.util import Finalize

        finalizer = Finalize(None, work, exitpriority=0)

    def cancel() -> None:
        atexit.unregister(work)
        if finalizer is not None:
            finalizer.cancel()

    return cancel


class RunningPool:
    """One entered pool. Created in the event loop that it belongs to."""

    def __init__(self, templates: Templates, hub: EventHub, labels: Labels, on_pull: OnPull | None) -> None:
        self.pid = os.getpid()
        self._loop = running_loop()
        self._templates = templates
        self._hub = hub
        self._background = DetachedTaskGroup(on_abandoned=self.aclose)
        self._closing: ShieldedTask | None = None
        self.started = False
        """Whether the backend was checked, and slots may be requested."""
        self._opened = False
        self.fleet = Fleet(templates, hub, labels, self._background, on_pull)
        self.releases = Releases(self.fleet)
        self.checkpoints = Checkpoints(self.fleet, self.releases)
        self.queue = Queue(self.fleet, self.releases, self.checkpoints)
        HandOvers(self.fleet, self.queue, self.checkpoints)
        self.checkpoints.write = self._save

    async def open(self) -> None:
        """Check the backend, start background tasks, and wait for `min_sandboxes`. Raises as `SandboxPool.acquire`."""
        try:
            await self._templates.check()
            await self._background.start()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._leave_backends()
            raise
        self.started = True
        self._forget_exit = register_at_exit(self._at_exit)
        try:
            if self.fleet.closing:
                raise SlotClosed("the pool was closed while it was opened")
            self.fleet.background(self._hub.run, "delivering events")
            self.fleet.background(self.fleet.wake_up, "waking up")
            self.fleet.background(self.fleet.reap_orphans, "reaping orphans")
            self.fleet.background(partial(offer_view, self.releases.held), "offering a view")
            for template in self._templates.all:
                if template.size.min_sandboxes:
                    await self.queue.warm(template, template.size.min_sandboxes)
        except BaseException:
            await self.end()
            raise
        self._opened = True

    async def _save(self, checkpoint: Checkpoint, path: str | os.PathLike[str]) -> None:
        from hermes_exec.pool.saved import save_checkpoint

        await save_checkpoint(self.checkpoints, checkpoint, path)

    @property
    def is_open(self) -> bool:
        """Whether it was opened in this process, and is not closed."""
        return self._opened and not self.fleet.closing and self.pid == os.getpid()

    def close_when_idle(self) -> None:
        """Close the pool when it has had no slots and requests for `idle_timeout_s`."""
        self.fleet.background(self._close_when_idle, "closing an idle pool")

    async def _close_when_idle(self) -> None:
        idle_s = self._templates.config.idle_timeout_s
        while True:
            left_s = self.fleet.used_at + idle_s - anyio.current_time()
            if self._is_used():
                left_s = idle_s
            elif left_s <= 0:
                break
            await anyio.sleep(left_s)
        await self.aclose()

    def _is_used(self) -> bool:
        return bool(self.fleet.requests or self.releases.held or len(self.checkpoints))

    async def end(self) -> None:
        """Close the pool as `aclose`, and wait until the background tasks have ended."""
        try:
            await self.aclose()
        finally:
            await self._background.end()

    async def aclose(self) -> None:
        """End every sandbox. May be called more than once."""
        self.check_process()
        self.fleet.closing = True
        if self.started:
            self._closing = self._closing or ShieldedTask(self._close)
            await self._closing.wait()

    async def _close(self) -> None:
        try:
            with anyio.CancelScope(shield=True):
                self.queue.close()
                self.releases.close()
                await self.fleet.shut_down()
                self._hub.end()
                await self._leave_backends()
            self._forget_exit()
        finally:
            self._hub.drop()
            self._background.cancel()

    async def _leave_backends(self) -> None:
        with anyio.move_on_after(1):
            for backend in self._templates.backends:
                await backend.aclose()

    def _at_exit(self) -> None:
        if self.pid == os.getpid():
            self.fleet.closing = True
            self.fleet.destroy_now(self._templates.config.shutdown_timeout_s)

    def check_process(self) -> None:
        """Raise RuntimeError in a process other than the pool's."""
        if self.pid != os.getpid():
            raise RuntimeError(
                f"this SandboxPool belongs to process {self.pid}: create a new one after a fork or in a worker process"
            )

    def check(self) -> None:
        """Raise SlotClosed if the pool is closed, RuntimeError in a process or event loop other than the pool's."""
        self.check_process()
        if self.fleet.closing:
            raise SlotClosed("the pool was closed")
        self.check_loop()

    def check_loop(self) -> None:
        """Raise RuntimeError in a process or event loop other than the pool's."""
        self.check_process()
        if running_loop() != self._loop:
            raise other_loop_error("this SandboxPool")
