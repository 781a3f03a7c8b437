"""The browser of a slot: one Chromium, its tabs, and the events in them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio
from anyio.abc import TaskGroup

from hermes_exec.aio.tasks import DetachedTaskGroup
from hermes_exec.errors import ExecError
from hermes_exec.tools.browser import chromium
from hermes_exec.tools.browser.background_tasks import BackgroundTasks
from hermes_exec.tools.browser.devtools_pipe import DevToolsPipe
from hermes_exec.tools.browser.dialogs import Dialogs
from hermes_exec.tools.browser.downloads import Downloads
from hermes_exec.tools.browser.name_check import NameCheck
from hermes_exec.tools.browser.navigation import LATE_S, Navigation
from hermes_exec.tools.browser.page_log import PageLog
from hermes_exec.tools.browser.playwright_driver import (
    LOST_MESSAGE,
    PlaywrightDriver,
    PlaywrightDriverLost,
    ignore_errors,
)
from hermes_exec.tools.browser.request_log import RequestLog
from hermes_exec.tools.browser.sessions import new_session
from hermes_exec.tools.browser.tabs import Tabs
from hermes_exec.tools.call.failure import ToolFailure

if TYPE_CHECKING:
    from playwright.async_api import (
        Browser,
        BrowserContext,
        Page,
        Playwright,
    )

    from hermes_exec.slot.process import Process
    from hermes_exec.slot.slot import Slot

T = TypeVar("T")
START_S = 60.0
END_S = 5.0
ANSWER_S = 3.0
ARRIVE_S = 30.0
DOWNLOAD_S = 2.0
NEW_TAB_S = 2.0
SETTLE_S = 1.0
ERROR_PAGE_S = 1.0
VIEWPORT = (1280, 720)


class RunningBrowser:
    """A started browser: its process, connection, context and tabs."""

    def __init__(self, slot: Slot) -> None:
        self.slot, self.rules = slot, slot.browser_rules
        self.directory = f"{slot.tmp.rstrip('/')}/hermes-browser-{secrets.token_hex(6)}"
        self.used_at = anyio.current_time()
        self._process_ends = slot.process_ends
        self.log = PageLog()
        self.requests = RequestLog()
        self.calls = 0
        self.screenshots = 0
        self.last_tree = ""
        self.passwords: set[str] = set()
        """Text that was typed into password fields. No result shows it."""
        self._changed = asyncio.Event()
        """Set when a navigation or the connection ends, a dialog opens, or a download changes."""
        self._background = BackgroundTasks()
        self.dialogs = Dialogs(self.rules, self._background, self._changed.set)
        self.navigation = Navigation(slot, self._changed.set)
        self.tabs = Tabs(self.navigation)
        self.downloads = Downloads(slot, self._changed.set)
        self._name_check = NameCheck(slot, self.navigation.refuse)
        self._tasks: DetachedTaskGroup | None = None
        self._driver: PlaywrightDriver | None = None
        self._process: Process | None = None
        self._pipe: DevToolsPipe | None = None
        self._browser: Browser | None = None
        self._context: BrowserContext | None = None

    # start and end

    async def start(self, *, alone: bool = False) -> None:
        """Start the process, connect, and open an empty tab; with `alone`, without sharing Playwright's driver.

        Raises:
            ToolFailure: If the browser does not start.
            PlaywrightDriverLost: If the driver ended meanwhile.
        """
        self._driver = PlaywrightDriver.for_this_loop(alone=alone)
        try:
            playwright = await self._driver.use()
        except BaseException:
            self._driver = None
            raise
        try:
            await self._start(playwright)
        except BaseException:
            await self.aclose()
            raise

    async def _start(self, playwright: Playwright) -> None:
        from playwright.async_api import Error

        command = chromium.command(self.directory, self.navigation.options())
        self._process = await self.slot.spawn(command, stdin=True, output_limit_bytes=1 << 12)
        self._pipe = DevToolsPipe(self._process)
        self._tasks = DetachedTaskGroup()
        tasks = await self._tasks.start()
        try:
            self._browser = await self._pipe.connect(playwright, tasks, START_S)
            self._browser.on("disconnected", lambda _: self._changed.set())
            await self._open_context(self._browser)
        except Error as error:
            await self.check()
            with anyio.move_on_after(END_S):
                await self._pipe.ended.wait()
            if self._pipe.ended.is_set():
                raise await chromium.start_failure(self.slot, self._process, self.directory) from error
            first_line = str(error).partition("\n")[0]
            raise ToolFailure("browser_failed", f"The browser did not start: {first_line}", success=False) from error

    async def _open_context(self, browser: Browser) -> None:
        width, height = VIEWPORT
        self._context = context = await browser.new_context(viewport={"width": width, "height": height})
        self.navigation.watch(context)
        self.tabs.watch(context)
        self.dialogs.watch(context)
        self.log.watch(context)
        self.requests.watch(context)
        page = await context.new_page()
        session, opened = await asyncio.gather(browser.new_browser_cdp_session(), context.new_cdp_session(page))
        info = await opened.send("Target.getTargetInfo")
        self._background.start(opened.detach)
        await self.downloads.accept(session, info["targetInfo"]["browserContextId"])
        await self._name_check.watch(session)

    @property
    def context(self) -> BrowserContext:
        """The tabs, cookies and storage of the browser."""
        assert self._context is not None
        return self._context

    @property
    def tasks(self) -> TaskGroup:
        """The task group of the browser, until it is closed."""
        assert self._tasks is not None
        return self._tasks.tasks

    @property
    def ended_event(self) -> anyio.Event:
        """An event that is set when the browser's side of the connection has ended."""
        assert self._pipe is not None
        return self._pipe.ended

    @property
    def ended(self) -> bool:
        """Whether the connection to the browser has ended, or a checkpoint has ended the process.

        The connection ends a moment after the process.
        """
        if self._browser is None or self._process_ends != self.slot.process_ends:
            return True
        return not self._browser.is_connected() or self.ended_event.is_set()

    @property
    def left_out(self) -> dict[str, int]:
        """The number of events of pages that were not passed to the client, by method."""
        return self._pipe.guard.left_out if self._pipe is not None else {}

    async def check(self) -> None:
        """Raise if an error is more than an error of the page.

        Raises:
            ExecError: If the slot or its sandbox has ended.
            ToolFailure: If the browser was ended because of a message that it sent.
            PlaywrightDriverLost: If Playwright's driver has ended.
        """
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await self._process.wait(0)
        if self._pipe is not None and self._pipe.fault is not None:
            message = f"The browser was ended because it sent {self._pipe.fault}. browser_navigate starts another one."
            raise ToolFailure("browser_ended", message, success=False)
        if self.ended and self._driver is not None and await self._driver.has_ended():
            raise PlaywrightDriverLost(LOST_MESSAGE)

    async def aclose(self) -> None:
        """End the process and everything it started, close the client's side, and remove the profile."""
        with anyio.CancelScope(shield=True):
            if self._process is not None:
                with anyio.move_on_after(END_S), contextlib.suppress(ExecError, OSError):
                    await self._process.kill()
                with anyio.move_on_after(END_S), contextlib.suppress(ExecError, OSError):
                    await self.slot.files.remove(self.directory, recursive=True, missing_ok=True)
            if self._tasks is not None:
                self._tasks.cancel()
            if self._browser is not None:
                with anyio.move_on_after(END_S):
                    await ignore_errors(self._browser.close)
            self.navigation.close()
            self._name_check.close()
            self._background.cancel()
            if self._driver is not None:
                driver, self._driver = self._driver, None
                driver.stop_using()

    # tabs

    async def usable_page(self) -> Page:
        """Return the current tab, or a new one if it crashed, hangs or shows a forbidden page, or if all tabs are
        closed.

        The tab's own navigation is stopped.
        """
        if self.navigation.waiting is not None:  # a page does not respond during a navigation
            with anyio.move_on_after(ANSWER_S):
                await self.stop_loading()
        tabs = self.tabs
        page = tabs.current
        is_usable = page is not None and not tabs.crashed and self.navigation.page_refusal(page) is None
        if page is None or not is_usable or (self.calls > 1 and not self.dialogs.open and await self.is_hanging(page)):
            old_page = tabs.take_current()
            await self.context.new_page()
            if old_page is not None:
                self._background.start(old_page.close)
        return tabs.page

    async def is_hanging(self, page: Page) -> bool:
        """Return whether a page does not respond. A page behind a dialog does not count as hanging."""
        with anyio.move_on_after(ANSWER_S) as answering:
            await self.act(partial(ignore_errors, partial(page.evaluate, "1")))
        return answering.cancelled_caught

    def begin(self) -> None:
        """Start a call: navigations and requests from now on count as its effects."""
        self.calls += 1
        self.navigation.begin()
        self.downloads.has_begun = False

    async def settle(self, page: Page) -> None:
        """Wait until a page has finished the effects of an action.

        These include requests of its scripts, and their effects.
        """
        navigation = self.navigation

        def leads_elsewhere() -> bool:
            return bool(self.dialogs.open) or self.ended or page.is_closed() or navigation.waiting is not None

        with anyio.move_on_after(SETTLE_S):
            while not leads_elsewhere():
                await self.act(partial(ignore_errors, partial(navigation.flush, page)))
                if not navigation.is_asking:
                    break
                await self._wait_until(lambda: not navigation.is_asking or leads_elsewhere())

    async def wait_for_departure(self) -> None:
        """Wait until a tab starts a navigation."""
        await self._wait_until(lambda: self.navigation.waiting is not None)

    async def wait_for_arrival(self) -> str | None:
        """Wait until the navigations of all tabs have ended, and a small file that one of them turned out to be is
        downloaded.

        Returns the URL that did not respond in time; the tab then stays at its page.
        """
        with anyio.move_on_after(NEW_TAB_S) as opening:
            await self._wait_until(lambda: self.navigation.tabs_to_come == 0 or self.navigation.waiting is not None)
        if opening.cancelled_caught:
            self.navigation.tabs_to_come = 0
        with anyio.move_on_after(ARRIVE_S) as waiting:
            await self._wait_until(lambda: self.navigation.waiting is None or bool(self.dialogs.open) or self.ended)
        if waiting.cancelled_caught:
            url = self.navigation.waiting
            await self.stop_loading()
            return url
        # A new tab whose request is refused is reported after its navigation has ended.
        with anyio.move_on_after(NEW_TAB_S):
            await self._wait_until(lambda: self.navigation.tabs_to_come == 0 or bool(self.dialogs.open) or self.ended)
        self.navigation.tabs_to_come = 0
        if self.navigation.take_download():
            with anyio.move_on_after(DOWNLOAD_S):
                await self._wait_until(lambda: self.downloads.has_begun or self.navigation.waiting is not None)
                await self._wait_until(lambda: not self.downloads.in_progress)
        return None

    async def wait_for_document(self, page: Page, timeout_s: float) -> bool:
        """Wait until a page has read its document, or until only parts are missing that are late.

        Returns whether the page can be shown: false if its document did not arrive in time.
        """
        loaded = partial(page.wait_for_load_state, "domcontentloaded", timeout=0)
        loading = asyncio.ensure_future(self.act(loaded))
        try:
            with anyio.move_on_after(timeout_s):
                while not loading.done():
                    await asyncio.wait({loading}, timeout=LATE_S / 10)
                    if self.navigation.late_parts(page):
                        return True
                loading.result()
                return True
            return False
        finally:
            loading.cancel()

    async def wait_for_error_page(self, shown_before: int) -> None:
        """Wait for the browser's own page about a failed navigation, which would otherwise disturb the next navigation.

        `shown_before` is the number of such pages before the navigation.
        """
        with anyio.move_on_after(ERROR_PAGE_S):
            await self._wait_until(lambda: self.navigation.error_pages > shown_before or self.ended)

    async def stop_loading(self) -> None:
        """Stop the navigations of all tabs."""
        self.navigation.forget()
        for page in self.tabs.pages:
            await ignore_errors(partial(_stop_loading, page))

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    # actions

    async def act(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Run an action in a page and return its result. Raises Playwright's errors.

        Returns None if a dialog opened, because it blocks the page until it is answered. The action then continues in
        the background.
        """

        async def run() -> T:  # a cancelled `gather` logs an error unless it is awaited
            return await work()

        self.dialogs.dialog_opened.clear()
        work_task = asyncio.ensure_future(run())
        dialog_task = asyncio.ensure_future(self.dialogs.dialog_opened.wait())
        try:
            await asyncio.wait({work_task, dialog_task}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            work_task.cancel()
            raise
        finally:
            dialog_task.cancel()
        if not work_task.done():
            if self.dialogs.open:
                self._background.keep(work_task)
                return None
            return await work_task  # the dialog was answered at once
        return work_task.result()


async def _stop_loading(page: Page) -> None:
    session = await new_session(page)
    await session.send("Page.stopLoading")
    await session.detach()
