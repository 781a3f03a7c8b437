"""Which browser a slot has: one, from its first use until it ends, or nobody uses it."""

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
"""After so many, a slot shares Playwright's driver with no other: one of them may be what ends it."""
_BROWSERS: WeakKeyDictionary[Slot, SlotBrowser] = WeakKeyDictionary()


def of_slot(slot: Slot) -> SlotBrowser:
    """The browser of a slot, which need not have been started. One that ended with a reset is replaced."""
    browser = _BROWSERS.get(slot)
    if browser is None or browser.resets != slot.resets:
        browser = _BROWSERS[slot] = SlotBrowser(slot, losses=browser.losses if browser is not None else 0)
    return browser


class SlotBrowser:
    """One Chromium in a slot, from its first use until `aclose`, the end of its process, or a time without use."""

    def __init__(self, slot: Slot, *, losses: int = 0) -> None:
        self._slot = weakref.ref(slot)  # it is the key under which this is kept
        self.resets = slot.resets
        self.rules: BrowserConfig = slot.browser_rules
        self.turn = anyio.Lock()
        self._loss: str | None = None
        """Why the browser that was there before is there no more."""
        self._running: RunningBrowser | None = None
        self.losses = losses
        """How often it has ended with Playwright's driver."""
        self._driver_lost = False
        self.was_used = False
        """Whether a call before the one under way has worked in the browser that runs, or ran last."""

    @property
    def running(self) -> RunningBrowser | None:
        """What was started, while it lives."""
        return self._running

    async def ensure_running(self) -> RunningBrowser:
        """The running browser, started if need be.

        Raises:
            ToolFailure: there is none to be had.
            PlaywrightDriverLost: the one before ended with Playwright's driver, and nobody was told; or two did as they
                started.
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
        """The running browser, started if need be, for one call at a time. Raises as `ensure_running`."""
        async with self.turn:
            running = await self.ensure_running()
            try:
                yield running
            finally:
                running.used_at = anyio.current_time()

    async def _watch(self, running: RunningBrowser) -> None:
        """Let go of the browser when it has ended, as with its slot, or was not used for a while."""
        limit_s = self.rules.inactivity_timeout_s
        why = f"the browser was ended after {limit_s:g} s without use"
        while True:
            left_s = running.used_at + limit_s - anyio.current_time()
            if left_s <= 0 and not self.turn.statistics().locked:
                break
            with anyio.move_on_after(max(left_s, 1.0)):
                await running.gone.wait()
                why = "the browser ended"
                break
        async with self.turn:
            await self._lose(running, why)

    async def _lose(self, running: RunningBrowser, why: str) -> None:
        if self._running is running:
            self._running = None
            self._loss = f"{why}: its tabs and cookies are gone"
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
        """Let go of a browser that ended with Playwright's driver, as the call under way is told."""
        await self._lose(running, "the browser ended")
        self._driver_lost, self.was_used = False, running.calls > 1

    def take_loss(self) -> dict[str, str]:
        """What the next result tells of a browser that is there no more; once."""
        loss, self._loss = self._loss, None
        return {} if loss is None else {"warning": loss}

    async def aclose(self) -> None:
        """End the browser with its profile. Harmless when repeated."""
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()
