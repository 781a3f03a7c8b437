"""The browser of each slot: one, from its first use until it ends or is no longer used."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import anyio

from hermes_exec.errors import ExecError
from hermes_exec.tools.browser.browser import RunningBrowser
from hermes_exec.tools.browser.playwright_driver import LOST_MESSAGE, PlaywrightDriverLost
from hermes_exec.tools.call.failure import ToolFailure

if TYPE_CHECKING:
    from hermes_exec.config.browser import BrowserConfig
    from hermes_exec.slot.slot import Slot

MAX_SHARED_LOSSES = 2
"""After this many losses, a slot shares Playwright's driver with no other, because its browser may be the cause."""
_BROWSERS: WeakKeyDictionary[Slot, SlotBrowser] = WeakKeyDictionary()


def browser_of_slot(slot: Slot) -> SlotBrowser:
    """Return the browser of a slot, started or not. A browser that ended with a reset is replaced."""
    browser = _BROWSERS.get(slot)
    if browser is None or browser.resets != slot.resets:
        browser = _BROWSERS[slot] = SlotBrowser(slot, losses=browser.losses if browser is not None else 0)
    return browser


class SlotBrowser:
    """One Chromium in a slot, from its first use until `aclose`, the end of its process, or a time without use."""

    def __init__(self, slot: Slot, *, losses: int = 0) -> None:
        self._slot = weakref.ref(slot)  # the slot is the key of this object in _BROWSERS
        self.resets = slot.resets
        self.rules: BrowserConfig = slot.browser_rules
        self.lock = anyio.Lock()
        self._loss: str | None = None
        """The reason why the previous browser ended, until a result has reported it."""
        self._running: RunningBrowser | None = None
        self.losses = losses
        """The number of times that it ended with Playwright's driver."""
        self._driver_lost = False
        self.was_used = False
        """Whether an earlier call has used the browser that runs, or ran last."""

    @property
    def running(self) -> RunningBrowser | None:
        """The running browser, if there is one."""
        return self._running

    async def ensure_running(self) -> RunningBrowser:
        """Return the running browser, started if necessary.

        Raises:
            ToolFailure: If the browser does not start.
            PlaywrightDriverLost: If the previous browser ended with Playwright's driver and no result has reported it,
                or if two ended with it while they started.
        """
        if self._running is not None and self._running.ended:
            await self._lose(self._running, "the browser ended")
        if self._driver_lost:
            self._driver_lost = False
            raise PlaywrightDriverLost(LOST_MESSAGE)
        if self._running is None:
            try:
                self._running = await self._start()
            except PlaywrightDriverLost:
                self.losses += 1
                self._running = await self._start()
            self._running.tasks.start_soon(self._watch, self._running)
        return self._running

    async def _start(self) -> RunningBrowser:
        slot = self._slot()
        assert slot is not None
        running = RunningBrowser(slot)
        await running.start(alone=self.losses >= MAX_SHARED_LOSSES)
        return running

    @asynccontextmanager
    async def use(self) -> AsyncIterator[RunningBrowser]:
        """Hold the running browser, started if necessary, for one call at a time.

        Raises the errors of `ensure_running`.
        """
        async with self.lock:
            running = await self.ensure_running()
            try:
                yield running
            finally:
                running.used_at = anyio.current_time()

    async def _watch(self, running: RunningBrowser) -> None:
        """Close the browser when it has ended, for example with its slot, or was not used for a time."""
        limit_s = self.rules.inactivity_timeout_s
        reason = f"the browser was ended after {limit_s:g} s without use"
        while True:
            left_s = running.used_at + limit_s - anyio.current_time()
            if left_s <= 0 and not self.lock.statistics().locked:
                break
            with anyio.move_on_after(max(left_s, 1.0)):
                await running.ended_event.wait()
                reason = "the browser ended"
                break
        async with self.lock:
            await self._lose(running, reason)

    async def _lose(self, running: RunningBrowser, reason: str) -> None:
        if self._running is running:
            self._running = None
            self._loss = f"{reason}: its tabs and cookies are gone"
            self.was_used = running.calls > 0
            try:
                await running.check()
            except PlaywrightDriverLost:
                self._driver_lost, self._loss = True, None
                self.losses += 1
            except (ToolFailure, ExecError) as error:
                self._loss = f"{error}: its tabs and cookies are gone"
        await running.aclose()

    async def give_up(self, running: RunningBrowser) -> None:
        """Close a browser that ended with Playwright's driver. The running call reports it."""
        await self._lose(running, "the browser ended")
        self._driver_lost, self.was_used = False, running.calls > 1

    def take_loss(self) -> dict[str, str]:
        """Return the warning about a browser that ended, for the next result only."""
        loss, self._loss = self._loss, None
        return {} if loss is None else {"warning": loss}

    async def aclose(self) -> None:
        """End the browser and remove its profile. It may be called repeatedly."""
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()
