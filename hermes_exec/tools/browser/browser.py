"""The browser of a slot: one Chromium, its tabs, and what happened in them."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import secrets
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import anyio
from anyio.abc import TaskGroup

from hermes_exec.aio.tasks import DetachedTaskGroup
from hermes_exec.errors import ExecError
from hermes_exec.tools.browser import chromium
from hermes_exec.tools.browser.driver import Driver
from hermes_exec.tools.call.failure import ToolFailure

if TYPE_CHECKING:
    from playwright.async_api import (
        Browser,
        BrowserContext,
        CDPSession,
        ConsoleMessage,
        Dialog,
        Error,
        Frame,
        Page,
        Playwright,
        Request,
        Response,
    )

    from hermes_exec.config.browser import BrowserConfig
    from hermes_exec.slot.process import Process
    from hermes_exec.slot.slot import Slot
    from hermes_exec.tools.browser.endpoint import DevToolsEndpoint

T = TypeVar("T")
START_S = 60.0
END_S = 5.0
KEPT = 500
ANSWER_S = 3.0
ARRIVE_S = 30.0
DOWNLOAD_S = 0.5
VIEWPORT = (1280, 720)
_BROWSERS: WeakKeyDictionary[Slot, SlotBrowser] = WeakKeyDictionary()


@dataclass
class OpenDialog:
    """A dialog of a page (alert, confirm, prompt, beforeunload)."""

    dialog: Dialog
    id: str = field(default_factory=lambda: "dialog_" + secrets.token_hex(4))
    opened_at: float = field(default_factory=time.time)
    answer: str | None = None

    def told(self) -> dict[str, object]:
        """As a model sees it."""
        told: dict[str, object] = {"id": self.id, "type": self.dialog.type, "message": self.dialog.message}
        if self.dialog.default_value:
            told["default_prompt"] = self.dialog.default_value
        told["opened_at"] = round(self.opened_at, 3)
        if self.answer is not None:
            told["answer"] = self.answer
        return told


@dataclass
class FileDownload:
    """A file that a page had the browser fetch; `path` is where it is in the slot, once it is there."""

    url: str
    name: str
    state: str = "in progress"
    path: str | None = None
    size: int = 0
    told: bool = False
    arrived: str | None = None
    """Where the browser has put it, under a name of its own."""

    @property
    def under_way(self) -> bool:
        """Whether it is still coming, or waits for its name."""
        return self.state == "in progress" or (self.state == "completed" and self.path is None)


def of_slot(slot: Slot) -> SlotBrowser:
    """The browser of a slot, which need not have been started. One that ended with a reset is replaced."""
    browser = _BROWSERS.get(slot)
    if browser is None or browser.resets != slot.resets:
        browser = _BROWSERS[slot] = SlotBrowser(slot)
    return browser


class SlotBrowser:
    """One Chromium in a slot, from its first use until `aclose`, the end of its process, or a time without use."""

    def __init__(self, slot: Slot) -> None:
        self._slot = weakref.ref(slot)  # it is the key under which this is kept
        self.resets = slot.resets
        self.rules: BrowserConfig = slot.browser_rules
        self.turn = anyio.Lock()
        self.lost: str | None = None
        """Why the browser that was there before is there no more; told once."""
        self._running: Running | None = None

    @property
    def running(self) -> Running | None:
        """What was started, while it lives."""
        return self._running

    async def started(self) -> Running:
        """The running browser, started if need be. Raises ToolFailure when there is none to be had."""
        if self._running is not None and self._running.ended:
            await self._lose(self._running, "the browser ended")
        if self._running is None:
            slot = self._slot()
            assert slot is not None
            running = Running(slot)
            await running.start()
            self._running = running
            running.tasks.start_soon(self._watch, running)
        self._running.used_at = anyio.current_time()
        return self._running

    async def _watch(self, running: Running) -> None:
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
        await self._lose(running, why)

    async def _lose(self, running: Running, why: str) -> None:
        if self._running is running:
            self._running = None
            self.lost = f"{why}: its tabs and cookies are gone"
        await running.aclose()

    async def aclose(self) -> None:
        """End the browser with its profile. Harmless when repeated."""
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()


class Running:
    """A browser that was started: its process, its connection, its context and its tabs."""

    def __init__(self, slot: Slot) -> None:
        self.slot, self.rules = slot, slot.browser_rules
        self.folder = f"{slot.tmp.rstrip('/')}/hermes-browser-{secrets.token_hex(6)}"
        self.downloads_folder = f"{slot.home.rstrip('/')}/Downloads"
        self.used_at = anyio.current_time()
        self.console: deque[dict[str, object]] = deque(maxlen=KEPT)
        self.errors: deque[dict[str, object]] = deque(maxlen=KEPT)
        self.console_count = self.error_count = 0
        self.dialogs: list[OpenDialog] = []
        self.past_dialogs: deque[OpenDialog] = deque(maxlen=20)
        self.downloads: dict[str, FileDownload] = {}
        self._navigations: set[Request] = set()
        self._aborted = False
        self._checks: set[asyncio.Future[None]] = set()
        self._withdrawn: tuple[str, str] | None = None
        self._refused: tuple[str, str] | None = None
        self.crashed = False
        self.screenshots = 0
        self.last_tree = ""
        self._dialog_came = asyncio.Event()
        self._news = asyncio.Event()
        """Set by what is waited for: the end of a navigation or of the connection, a dialog, a download."""
        self._tasks: DetachedTaskGroup | None = None
        self._driver: Driver | None = None
        self._process: Process | None = None
        self._endpoint: DevToolsEndpoint | None = None
        self._browser: Browser | None = None
        self._context: BrowserContext | None = None
        self._session: CDPSession | None = None
        self._pages: list[Page] = []
        self._left: set[asyncio.Task[Any]] = set()

    # its life

    async def start(self) -> None:
        """Start the process, connect, and open an empty tab. Raises ToolFailure with the reason."""
        self._driver = Driver.of_this_loop()
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

        from hermes_exec.tools.browser.endpoint import DevToolsEndpoint

        self._process = await self.slot.spawn(
            chromium.command(self.folder, self._options()), stdin=True, output_limit_bytes=1 << 12
        )
        self._endpoint = DevToolsEndpoint(self._process)
        self._tasks = DetachedTaskGroup()
        await self._endpoint.start(await self._tasks.start())
        try:
            self._browser = await playwright.chromium.connect_over_cdp(self._endpoint.url, timeout=START_S * 1000)
            self._browser.on("disconnected", lambda _: self._news.set())
            await self._open_context(self._browser)
        except Error as error:
            await self.check_slot()
            if self._endpoint.ended.is_set():
                raise await chromium.why_it_ended(self.slot, self._process, self.folder) from error
            raise ToolFailure(
                "browser_failed", f"The browser did not start: {_first_line(error)}", success=False
            ) from error

    async def _open_context(self, browser: Browser) -> None:
        width, height = VIEWPORT
        self._context = context = await browser.new_context(viewport={"width": width, "height": height})
        context.on("request", self._on_request)
        context.on("requestfinished", self._on_finished)
        context.on("response", self._on_response)
        context.on("requestfailed", self._on_failed)
        context.on("page", self._on_page)
        context.on("dialog", self._on_dialog)
        context.on("console", self._on_console)
        context.on("weberror", lambda event: self._on_error(event.error))
        page = await context.new_page()
        self._session = session = await browser.new_browser_cdp_session()
        opened = await context.new_cdp_session(page)
        info = await opened.send("Target.getTargetInfo")
        await opened.detach()
        session.on("Browser.downloadWillBegin", self._on_download)
        session.on("Browser.downloadProgress", self._on_progress)
        await session.send(
            "Browser.setDownloadBehavior",
            {
                "behavior": "allowAndName",
                "browserContextId": info["targetInfo"]["browserContextId"],
                "downloadPath": self.downloads_folder,
                "eventsEnabled": True,
            },
        )

    @property
    def tasks(self) -> TaskGroup:
        """What runs in the background until it is closed."""
        assert self._tasks is not None
        return self._tasks.tasks

    @property
    def gone(self) -> anyio.Event:
        """Set when the browser's side of the connection has ended."""
        assert self._endpoint is not None
        return self._endpoint.ended

    @property
    def ended(self) -> bool:
        """Whether the connection to it is gone."""
        return self._browser is None or not self._browser.is_connected()

    async def check_slot(self) -> None:
        """Raise the ExecError of a slot that has ended, or whose box has: that is more than the end of a browser."""
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await self._process.wait(0)

    async def aclose(self) -> None:
        """End the process and everything it started, then let go of the client's side, and remove the profile."""
        with anyio.CancelScope(shield=True):
            if self._process is not None:
                with anyio.move_on_after(END_S):
                    try:
                        await self._process.kill()
                        await self.slot.files.remove(self.folder, recursive=True, missing_ok=True)
                    except (ExecError, OSError):
                        pass  # it ends with the slot
            if self._tasks is not None:
                self._tasks.cancel()
            if self._browser is not None:
                with anyio.move_on_after(END_S):
                    await quietly(self._browser.close)
            for task in list(self._left):
                task.cancel()
            if self._driver is not None:
                driver, self._driver = self._driver, None
                driver.leave()

    # rules

    def refusal(self, url: str) -> str | None:
        """Why a URL may not be opened; None when it may."""
        return self.rules.refusal(url, network=self.slot.network, own_loopback=self.slot.own_loopback)

    def take_refused(self) -> tuple[str, str] | None:
        """The URL that the rules kept a page from opening since the last time, and why."""
        refused, self._refused = self._refused, None
        return refused

    def _options(self) -> list[str]:
        """Chromium's options that hold the rules, whatever a page does."""
        rules = self.rules
        resolver = rules.resolver_rules(network=self.slot.network, own_loopback=self.slot.own_loopback)
        by_name = rules.allow_hosts or rules.refuse_hosts  # which a proxy would not know
        return [f"--host-resolver-rules={resolver}"] * bool(resolver) + ["--no-proxy-server"] * bool(by_name)

    def _on_request(self, request: Request) -> None:
        if request.is_navigation_request():
            frame = _frame_of(request)
            if frame is None or frame.parent_frame is None:
                self._navigations.add(request)

    def _on_navigated(self, frame: Frame) -> None:
        if frame.parent_frame is None:  # the rest of a page that arrives is not waited for
            self._navigations = {request for request in self._navigations if _frame_of(request) not in (None, frame)}
            self._news.set()

    def _on_finished(self, request: Request) -> None:
        self._navigations.discard(request)
        self._news.set()

    def _on_response(self, response: Response) -> None:
        if response.request.is_navigation_request():
            check = asyncio.ensure_future(quietly(lambda: self._check_address(response)))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)

    async def _check_address(self, response: Response) -> None:
        """Leave a page, or one with a frame, that a name has led to where the rules let no page be."""
        host, server = urlsplit(response.url).hostname or "", await response.server_addr()
        address = None if server is None else server["ipAddress"].strip("[]")
        where = {"network": self.slot.network, "own_loopback": self.slot.own_loopback}
        if address is not None and (why := self.rules.address_refusal(host, address, **where)) is not None:
            self._withdrawn = (response.url, why)
            for page in self.pages:
                await quietly(partial(page.goto, "about:blank"))

    async def take_withdrawn(self) -> tuple[str, str] | None:
        """The URL of a page or a frame for which all pages were left since the last time, and why. Waits until it is
        known of those that are there.
        """
        while self._checks:
            await asyncio.wait(self._checks)
        withdrawn, self._withdrawn = self._withdrawn, None
        return withdrawn

    def _on_failed(self, request: Request) -> None:
        if request in self._navigations:
            self._on_finished(request)
            self._aborted = "ERR_ABORTED" in (request.failure or "")  # as when it turns out to be a download
        if request.is_navigation_request() and (why := self.refusal(request.url)) is not None:
            self._refused = (request.url, why)

    # what happens in it

    @property
    def page(self) -> Page:
        """The tab that the tools work in, the one opened last. Raises ToolFailure when there is none, or it crashed."""
        if self.crashed:
            told = "The page crashed, perhaps for want of memory. Open it again, or another one, with browser_navigate."
            raise ToolFailure("page_crashed", told, success=False)
        if not self._pages:
            raise ToolFailure("no_page", "All tabs are closed. Open a page with browser_navigate.", success=False)
        return self._pages[-1]

    @property
    def pages(self) -> list[Page]:
        """All tabs, the current one last."""
        return list(self._pages)

    async def usable_page(self) -> Page:
        """The current tab, or a new one when it has crashed or hangs, or all are closed."""
        if self.crashed or not self._pages or (not self.dialogs and await self._hangs()):
            lost = self._pages.pop() if self._pages else None
            assert self._context is not None
            await self._context.new_page()
            self.crashed = False
            if lost is not None:
                self._leave(asyncio.ensure_future(quietly(lost.close)))
        return self.page

    async def _hangs(self) -> bool:
        """Whether the page does not answer."""
        with anyio.move_on_after(ANSWER_S) as answering:
            await quietly(lambda: self._pages[-1].evaluate("1"))
        return answering.cancelled_caught

    def _on_page(self, page: Page) -> None:
        self._pages.append(page)
        page.on("close", self._on_close)
        page.on("crash", self._on_crash)
        page.on("framenavigated", self._on_navigated)
        self._on_navigated(page.main_frame)

    def _on_close(self, page: Page) -> None:
        if page in self._pages:
            self._pages.remove(page)

    def _on_crash(self, page: Page) -> None:
        if self._pages and page is self._pages[-1]:
            self.crashed = True

    def _on_console(self, message: ConsoleMessage) -> None:
        self.console_count += 1
        self.console.append({"type": message.type, "text": message.text[:4000], "source": "console"})

    def _on_error(self, error: Error) -> None:
        self.error_count += 1
        self.errors.append({"message": error.message[:4000], "source": "exception"})

    def _on_dialog(self, dialog: Dialog) -> None:
        opened = OpenDialog(dialog)
        self.dialogs.append(opened)
        self._dialog_came.set()
        self._news.set()
        if self.rules.dialogs != "must_respond":
            self._leave(asyncio.ensure_future(self.answer(opened, accept=self.rules.dialogs == "auto_accept")))

    async def answer(self, opened: OpenDialog, *, accept: bool, text: str | None = None) -> None:
        """Answer a dialog; `text` is what a prompt is given."""
        if opened in self.dialogs:
            self.dialogs.remove(opened)
            opened.answer = "accepted" if accept else "dismissed"
            self.past_dialogs.append(opened)
        work = (lambda: opened.dialog.accept(text)) if accept else opened.dialog.dismiss
        await quietly(work)

    def _on_download(self, event: dict[str, Any]) -> None:
        self.downloads[str(event["guid"])] = FileDownload(str(event["url"])[:2000], str(event["suggestedFilename"]))
        self._news.set()

    def _on_progress(self, event: dict[str, Any]) -> None:
        download = self.downloads.get(str(event["guid"]))
        if download is None:
            return
        download.size = int(event.get("receivedBytes", 0))
        state, limit = event.get("state"), self.rules.download_mb << 20
        if state == "completed":
            download.arrived = f"{self.downloads_folder}/{event['guid']}"
        if max(download.size, int(event.get("totalBytes", 0))) > limit:
            if state == "inProgress" and download.state == "in progress" and (session := self._session) is not None:
                stop = session.send("Browser.cancelDownload", {"guid": event["guid"]})
                self._leave(asyncio.ensure_future(quietly(lambda: stop)))
            download.state = f"refused: larger than {self.rules.download_mb} MiB"
        elif state in ("completed", "canceled"):
            download.state = str(state)
        self._news.set()

    @property
    def on_the_way(self) -> bool:
        """Whether a tab waits for the answer to a navigation."""
        return bool(self._navigations)

    async def arrive(self) -> str | None:
        """Wait until the tabs are where they are going, and a small file that this turned out to be is there.

        Returns the URL that did not answer in time; the tab stays where it was.
        """
        with anyio.move_on_after(ARRIVE_S) as waiting:
            await self._until(lambda: not self._navigations or bool(self.dialogs) or self.ended)
        if waiting.cancelled_caught:
            url = next(iter(self._navigations)).url
            await self.stop_loading()
            return url
        if self._aborted:
            self._aborted = False
            with anyio.move_on_after(DOWNLOAD_S):
                await self._until(lambda: any(not download.told for download in self.downloads.values()))
                await self._until(lambda: all(each.state != "in progress" for each in self.downloads.values()))
        return None

    async def stop_loading(self) -> None:
        """Leave all tabs where they are."""
        self._navigations.clear()
        for page in self.pages:
            session = await self.new_session(page)
            await session.send("Page.stopLoading")
            await quietly(session.detach)

    async def _until(self, true: Callable[[], bool]) -> None:
        while not true():
            self._news.clear()
            await self._news.wait()

    async def name_downloads(self) -> None:
        """Give finished downloads the names that they came with, or the next ones that are free, and remove those that
        are refused and came all the same.
        """
        for download in self.downloads.values():
            if download.arrived is None or download.path is not None:
                continue
            if download.state != "completed":
                await self.slot.files.remove(download.arrived, missing_ok=True)
                download.arrived = None
                continue
            name = posixpath.basename(download.name.replace("\0", "")) or "download"
            stem, dot, ending = name.partition(".")
            for number in range(1, KEPT):
                path = f"{self.downloads_folder}/{name if number == 1 else f'{stem}-{number}{dot}{ending}'}"
                try:
                    await self.slot.files.move(download.arrived, path, overwrite=False)
                except FileExistsError:
                    continue
                download.path = path
                break

    # what the tools do in it

    async def act(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Do something in a page. None when a dialog opened, which holds the page until it is answered: the work goes
        on after that by itself.

        Raises what Playwright raises.
        """
        self._dialog_came.clear()
        doing = asyncio.ensure_future(work())
        waiting = asyncio.ensure_future(self._dialog_came.wait())
        try:
            await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            doing.cancel()
            raise
        finally:
            waiting.cancel()
        if not doing.done():
            if self.dialogs:
                self._leave(doing)
                return None
            return await doing  # the dialog was answered at once
        return doing.result()

    def _leave(self, task: asyncio.Future[Any]) -> None:
        """Let something go on by itself."""
        self._left.add(task)  # type: ignore[arg-type]
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Future[Any]) -> None:
        self._left.discard(task)
        if not task.cancelled():
            task.exception()

    def forget_console(self) -> None:
        """Drop what pages logged, and their errors."""
        self.console.clear()
        self.errors.clear()
        self.console_count = self.error_count = 0

    async def tab(self, target: str | None) -> Page:
        """The current tab, or the one with this id of DevTools."""
        if target is None:
            return self.page
        for page in self._pages:
            session = await self.new_session(page)
            info = await session.send("Target.getTargetInfo")
            await quietly(session.detach)
            if info["targetInfo"]["targetId"] == target:
                return page
        raise ToolFailure("not_found", f"There is no tab with the target_id {target!r}.", success=False)

    async def new_session(self, page: Page, frame: str | None = None) -> CDPSession:
        """A DevTools session with a tab, or with the one of its frames that has this id and a process of its own."""
        from playwright.async_api import Error

        assert self._context is not None
        for candidate in page.frames[1:] if frame is not None else ():
            try:
                session = await self._context.new_cdp_session(candidate)
            except Error:
                continue  # it shares the process of its parent
            if (await session.send("Target.getTargetInfo"))["targetInfo"]["targetId"] == frame:
                return session
            await quietly(session.detach)
        return await self._context.new_cdp_session(page)


def _frame_of(request: Request) -> Frame | None:
    """The frame that a request navigates; None when that is a tab that has no page yet."""
    from playwright.async_api import Error

    try:
        return request.frame
    except Error:
        return None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


async def quietly(work: Callable[[], Awaitable[object]]) -> None:
    """Do what fails when the page or the browser is gone already."""
    from playwright.async_api import Error

    try:
        await work()
    except Error:
        return
