"""Playwright's driver, a program on the host: one per eight browsers of an event loop, while any of them is used."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import anyio

from hermes_exec.aio.loop import asyncio_loop
from hermes_exec.aio.tasks import DetachedTaskGroup, run_to_end
from hermes_exec.errors import ConfigError, ExecError
from hermes_exec.tools.browser import marks
from hermes_exec.tools.browser.playwright_script import harden_driver

if TYPE_CHECKING:
    import asyncio

    from playwright.async_api import Playwright

MISSING_EXTRA = "the extra 'browser' is not installed: pip install 'hermes-exec[browser]'"
START_S = 30.0
LINGER_S = 5.0
END_S = 1.0
LOST_MESSAGE = (
    "Playwright's driver, which serves other slots too, ended, and the browser of this slot with it: its tabs and "
    "cookies are gone; the next call starts another one"
)
MAX_USERS = 8
"""The maximum number of browsers that end together if one of them makes their shared driver end."""
_DRIVERS: WeakKeyDictionary[asyncio.AbstractEventLoop, list[PlaywrightDriver]] = WeakKeyDictionary()


def is_installed() -> bool:
    """Return whether Playwright's client can be imported."""
    return importlib.util.find_spec("playwright") is not None


class PlaywrightDriverLost(ExecError):
    """Playwright's driver has ended, and with it the browsers of all slots that it served.

    Any of these browsers may be the cause.
    """

    default_retryable = True


class PlaywrightDriver:
    """Starts Playwright at first use. Stops it after a time without users, or with the event loop."""

    def __init__(self) -> None:
        self._starting = anyio.Lock()
        self._playwright: Playwright | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: DetachedTaskGroup | None = None
        self._users, self._max_users = 0, MAX_USERS
        self._unused: anyio.CancelScope | None = None

    @classmethod
    def for_this_loop(cls, *, alone: bool = False) -> PlaywrightDriver:
        """Return a driver of the running event loop that has room for a user, or, with `alone`, has no other user.

        Raises:
            ConfigError: If Playwright is not installed or the event loop is not asyncio.
        """
        if not is_installed():
            raise ConfigError(MISSING_EXTRA)
        loop = asyncio_loop()
        if loop is None:
            raise ConfigError("the browser tools need asyncio: Playwright's client does not run on trio")
        drivers = _DRIVERS.setdefault(loop, [])
        fit = (driver for driver in drivers if driver._has_room(alone=alone))
        if (driver := next(fit, None)) is None:
            driver = cls()
            drivers.append(driver)
        if not driver._users:
            driver._max_users = 1 if alone else MAX_USERS
        return driver

    def _has_room(self, *, alone: bool) -> bool:
        return not self._users or (not alone and not self._ended and self._users < self._max_users)

    @property
    def _ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    async def has_ended(self) -> bool:
        """Return whether the program has ended, which it never does by itself.

        A short wait detects a program that is ending.
        """
        process = self._process
        if process is None:
            return False
        with anyio.move_on_after(END_S):
            await process.wait()
        return self._ended

    async def use(self) -> Playwright:
        """Return Playwright, started if necessary. Call `stop_using` afterwards."""
        self._users += 1
        try:
            return await self._ensure_started()
        except BaseException:
            self.stop_using()
            raise

    async def _ensure_started(self) -> Playwright:
        async with self._starting:
            if self._unused is not None:
                self._unused.cancel()
                self._unused = None
            if self._ended:
                await self._end()
            if self._playwright is None:
                await run_to_end(self._start)
            assert self._playwright is not None
            return self._playwright

    async def _start(self) -> None:
        """Start the program, even if the caller is cancelled: a half-started program could not be stopped."""
        from playwright.async_api import async_playwright

        with anyio.fail_after(START_S, shield=True), harden_driver():
            manager = async_playwright()
            self._playwright = await manager.start()
            self._process = getattr(getattr(getattr(manager, "_client", None), "_transport", None), "_proc", None)
            self._tasks = DetachedTaskGroup(self._stop)
            await self._tasks.start()
            await self._playwright.selectors.register(marks.ENGINE, marks.ENGINE_SCRIPT, content_script=True)

    def stop_using(self) -> None:
        """End one use."""
        self._users -= 1
        if self._users == 0 and self._tasks is not None:
            self._tasks.tasks.start_soon(self._linger)

    async def _linger(self) -> None:
        with anyio.CancelScope() as scope:
            self._unused = scope
            await anyio.sleep(LINGER_S)
            async with self._starting:
                if self._users == 0:
                    await self._end()

    async def _end(self) -> None:
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            await self._stop()
            tasks.cancel()

    async def _stop(self) -> None:
        playwright, self._playwright = self._playwright, None
        if playwright is not None:
            await playwright.stop()
            process, self._process = self._process, None
            # If the event loop cancelled its tasks, the client has dropped the process without ending it.
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


async def ignore_errors(work: Callable[[], Awaitable[object]]) -> None:
    """Run work that may fail because the page or the browser is gone, and ignore Playwright's errors."""
    from playwright.async_api import Error

    try:
        await work()
    except Error:
        return
