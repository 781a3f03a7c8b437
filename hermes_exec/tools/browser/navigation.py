"""Navigations of a browser's tabs: those in progress, and those that the rules of the pool forbid."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio

from hermes_exec.tools.browser.background_tasks import BackgroundTasks
from hermes_exec.tools.browser.playwright_driver import ignore_errors
from hermes_exec.tools.call.failure import ToolFailure

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Frame, Page, Request, Response, WebSocket

    from hermes_exec.slot.slot import Slot


CHECK_S = 10.0
LEAVE_S = 2.0
FRAMES_S = 0.1
SOCKET_S = 0.15
"""The answer of a web socket is complete after this time without a message."""
SCRIPT_REQUEST_TYPES = frozenset({"document", "script", "fetch", "xhr", "ping"})
"""Types of requests that an action waits for, because they change a page or a server."""
PART_TYPES = frozenset({"script", "stylesheet"})
"""Types of requests that may keep a page from being read or shown."""
LATE_S = 3.0
"""A part of a page is late after this time, if no other part has arrived meanwhile. It is not waited for."""
REQUESTLESS_URLS = ("about:", "data:")
"""URLs that cause no request: frames that are empty, or whose text is in the page."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})
NO_UDP_OPTIONS = tuple(f"--{force}webrtc-ip-handling-policy=disable_non_proxied_udp" for force in ("", "force-"))
"""WebRTC would send datagrams to any address. The option had another name once."""
NEXT_TASK_SCRIPT = "() => new Promise(done => setTimeout(done))"
"""Resolved when the page has run its pending tasks."""


class Navigation:
    """Tracks the navigations of all tabs. `on_change` is called when one of them ends."""

    def __init__(self, slot: Slot, on_change: Callable[[], None]) -> None:
        self._slot, self._rules, self._on_change = slot, slot.browser_rules, on_change
        self._context: BrowserContext | None = None
        self._waiting: set[Request] = set()
        self._answered: set[Request] = set()
        self._script_requests: set[Request | WebSocket] = set()
        self._answer_timers: dict[WebSocket, asyncio.TimerHandle] = {}
        """Timers that drop a web socket from the script requests once its answer is complete."""
        self._redirected: set[Request] = set()
        """Requests that were redirected to a URL which is not requested yet."""
        self._parts: dict[Request, float] = {}
        """The parts of pages that have not arrived, with the times of their requests."""
        self._expected_requests = 0
        self._sessions: dict[Page, CDPSession] = {}
        self.loading: set[Page] = set()
        """Tabs that may have a new document which is not loaded yet."""
        self._part_arrived_at = 0.0
        self.begun_count = 0
        """The number of navigations so far."""
        self.error_pages = 0
        """The number of failed navigations for which the browser has shown its own page."""
        self.tabs_to_come = 0
        """The number of tabs that pages have opened but that do not exist yet."""
        self._download = False
        self._last_refusal: tuple[str, str] | None = None
        self._checks = BackgroundTasks()
        self._withdrawal: tuple[str, str] | None = None
        self._forbidden_urls: dict[str, str] = {}

    def options(self) -> list[str]:
        """Return Chromium's options that enforce the rules, whatever a page does."""
        rules, slot = self._rules, self._slot
        resolver = rules.resolver_rules(network=slot.network, own_loopback=slot.own_loopback)
        by_name = rules.allow_hosts or rules.refuse_hosts  # a proxy would not apply such rules
        public_only = slot.network and not rules.allow_private
        return [
            *([f"--host-resolver-rules={resolver}"] if resolver else []),
            *(["--no-proxy-server"] if by_name else []),
            *(NO_UDP_OPTIONS if public_only else ()),
        ]

    def watch(self, context: BrowserContext) -> None:
        """Track the requests of all tabs of a context."""
        self._context = context
        context.on("request", self._on_request)
        context.on("requestfinished", self._on_finished)
        context.on("requestfailed", self._on_failed)
        context.on("response", self._on_response)

    def watch_page(self, page: Page) -> None:
        """Track a new tab, which has loaded its first page."""
        page.on("framenavigated", self._on_navigated)
        page.on("domcontentloaded", self._on_loaded)
        page.on("close", self._on_gone)
        page.on("crash", self._on_gone)
        page.on("websocket", self._on_socket)
        self._on_navigated(page.main_frame)
        self.tabs_to_come = max(0, self.tabs_to_come - 1)
        self._checks.start(partial(self._listen, page))
        if page.url in self._forbidden_urls:
            self._checks.start(partial(_leave, page))

    async def _listen(self, page: Page) -> None:
        """Subscribe to a page's own requests, which are reported before they appear on the network."""
        assert self._context is not None
        session = await self._context.new_cdp_session(page)
        session.on("Page.windowOpen", self._on_window)
        session.on("Page.frameRequestedNavigation", self._on_requested)
        await session.send("Page.enable")
        self._sessions[page] = session

    def session(self, page: Page) -> CDPSession | None:
        """Return the session with a tab, which a new tab does not have yet."""
        return self._sessions.get(page)

    def late_parts(self, page: Page) -> list[str]:
        """Return the URLs of late parts of a page: stylesheets, and scripts that keep it from reading its document."""
        types = PART_TYPES if page in self.loading else PART_TYPES - {"script"}
        late_before = anyio.current_time() - LATE_S
        if self._part_arrived_at > late_before:
            return []
        return [
            request.url
            for request, begun_at in self._parts.items()
            if begun_at <= late_before and request.resource_type in types and request_frame(request) is page.main_frame
        ]

    def begin(self) -> None:
        """Start an action: requests from now on count as its effects."""
        self._script_requests.clear()
        self._expected_requests = 0
        while self._answer_timers:
            self._answer_timers.popitem()[1].cancel()

    @property
    def is_asking(self) -> bool:
        """Whether a request since `begin`, other than the page of a tab, waits for its response."""
        return bool(self._script_requests) or self._expected_requests > 0

    async def flush(self, page: Page) -> None:
        """Wait until a page has run its pending tasks, and its requests are known."""
        if len(page.frames) > 1:  # events of frames in other processes are not ordered with the page's
            await anyio.sleep(FRAMES_S)
        session = self._sessions.get(page)
        answers = [page.evaluate(NEXT_TASK_SCRIPT)]
        if session is not None:
            answers.append(session.send("Runtime.evaluate", {"expression": "0"}))
        await asyncio.gather(*answers)

    @property
    def waiting(self) -> str | None:
        """The URL of a navigation that waits for its response."""
        return next((request.url for request in self._waiting), None)

    def forget(self) -> None:
        """Stop waiting for all current navigations."""
        self._drop(set(self._waiting))

    def expect_download(self) -> None:
        """Expect a download, which the browser reports only after its response."""
        self._download = True

    def take_download(self) -> bool:
        """Return whether a navigation since the last call may be a download: it was aborted, or declared as one."""
        download, self._download = self._download, False
        return download

    def refusal(self, url: str) -> str | None:
        """Return the reason why a URL may not be opened, or None if it may."""
        return self._rules.refusal(url, network=self._slot.network, own_loopback=self._slot.own_loopback)

    def refuse(self, url: str, reason: str) -> None:
        """Record that the rules forbid a page or frame to open a URL."""
        self._last_refusal = (url, reason)

    def take_refusal(self) -> tuple[str, str] | None:
        """Return the URL that the rules refused since the last call, and the reason."""
        refusal, self._last_refusal = self._last_refusal, None
        return refusal

    async def take_withdrawal(self) -> tuple[str, str] | None:
        """Return the forbidden URL because of which all pages were left since the last call, and the reason.

        Waits for the running checks of responses.
        """
        with anyio.move_on_after(CHECK_S):
            await self._checks.wait()
        withdrawal, self._withdrawal = self._withdrawal, None
        return withdrawal

    def page_refusal(self, page: Page) -> ToolFailure | None:
        """Return the error for a tab that shows, or has a frame with, a forbidden URL. Such a tab is being left."""
        urls = (frame.url for frame in page.frames)
        return next(
            (policy_failure(url, self._forbidden_urls[url]) for url in urls if url in self._forbidden_urls), None
        )

    def close(self) -> None:
        """Cancel running checks."""
        self._checks.cancel()

    def _on_window(self, _: object) -> None:
        self.tabs_to_come += 1

    def _on_requested(self, event: dict[str, object]) -> None:
        if event.get("disposition") == "download":
            self._download = True
        else:
            self._expected_requests += 1

    def _on_request(self, request: Request) -> None:
        if request.is_navigation_request():
            self._expected_requests = max(0, self._expected_requests - 1)
            frame = request_frame(request)
            if frame is None or frame.parent_frame is None:
                self._waiting.add(request)
                self.begun_count += 1
                self._on_change()
        if request.resource_type in PART_TYPES:
            self._parts[request] = anyio.current_time()
        if request not in self._waiting and request.resource_type in SCRIPT_REQUEST_TYPES:
            self._script_requests.add(request)
        if request.redirected_from is not None:
            self._drop({request.redirected_from})
            self._parts.pop(request.redirected_from, None)

    def _on_navigated(self, frame: Frame) -> None:
        """Stop waiting for the requests that were answered: the rest of a loading page is not waited for."""
        if frame.url.startswith(REQUESTLESS_URLS):
            self._expected_requests = max(0, self._expected_requests - 1)
            self._on_change()
        if frame.parent_frame is None:
            self.loading.add(frame.page)
            self.error_pages += frame.url.startswith("chrome-error:")
            self._download = False  # an earlier aborted request was no download: it led to this page
            self._drop({request for request in self._answered if request_frame(request) in (None, frame)})

    def _on_socket(self, socket: WebSocket) -> None:
        """Treat messages after a page's own as the answer to it, and to the opening of the socket."""
        self._script_requests.add(socket)
        socket.on("framesent", lambda _: self._script_requests.add(socket))
        socket.on("framereceived", lambda _: self._on_answer(socket))
        socket.on("close", lambda _: self._drop({socket}))

    def _on_answer(self, socket: WebSocket) -> None:
        if socket in self._script_requests:
            if socket in self._answer_timers:
                self._answer_timers[socket].cancel()
            self._answer_timers[socket] = asyncio.get_running_loop().call_later(SOCKET_S, self._drop, {socket})

    def _on_loaded(self, page: Page) -> None:
        self.loading.discard(page)

    def _on_gone(self, page: Page) -> None:
        self._sessions.pop(page, None)
        self.loading.discard(page)
        frames = {request: request_frame(request) for request in (*self._waiting, *self._parts)}
        gone = {request for request, frame in frames.items() if frame is not None and frame.page is page}
        self._drop(gone)
        for request in gone:
            self._parts.pop(request, None)

    def _take_part(self, request: Request) -> None:
        if self._parts.pop(request, None) is not None:
            self._part_arrived_at = anyio.current_time()

    def _drop(self, requests: AbstractSet[Request | WebSocket]) -> None:
        self._waiting -= requests
        self._answered -= requests
        self._script_requests -= requests
        self._redirected -= requests
        self._on_change()

    def _on_finished(self, request: Request) -> None:
        if request not in self._redirected:
            self._drop({request})
            self._take_part(request)

    def _on_failed(self, request: Request) -> None:
        if request in self._waiting:
            self._download = self._download or "ERR_ABORTED" in (request.failure or "")
        self._drop({request})
        self._take_part(request)
        if request.is_navigation_request() and (reason := self.refusal(request.url)) is not None:
            self._last_refusal = (request.url, reason)

    def _on_response(self, response: Response) -> None:
        opens = response.request.is_navigation_request()
        if response.status in REDIRECTS and "location" in response.headers:
            self._redirected.add(response.request)
        if opens:
            self._answered |= {response.request} & self._waiting
        if opens or (self._slot.network and not self._rules.allow_private):
            self._checks.start(partial(self._check_response, response, opens=opens))

    async def _check_response(self, response: Response, *, opens: bool) -> None:
        """Leave all pages if a page, a frame or a request of theirs was answered by a forbidden server.

        This covers cases that the browser's own rules do not see, such as a host name with a private address.
        """
        url, reason = response.url, self.refusal(response.url) if opens else None
        server = await response.server_addr() if reason is None else None
        if server is not None:
            host, address = urlsplit(url).hostname or "", server["ipAddress"].strip("[]")
            network = {"network": self._slot.network, "own_loopback": self._slot.own_loopback}
            reason = self._rules.address_refusal(host, address, **network)
        if reason is not None:
            self._withdrawal = (url, reason)
            self._forbidden_urls[url] = reason
            assert self._context is not None
            await asyncio.gather(*map(_leave, self._context.pages))


def policy_failure(url: str, reason: str) -> ToolFailure:
    """Return the error for a URL that the rules refuse."""
    message = f"{url[:500]} may not be opened: {reason}."
    return ToolFailure("blocked_by_policy", message, success=False, blocked_by_policy=reason)


async def _leave(page: Page) -> None:
    await ignore_errors(partial(page.goto, "about:blank", timeout=LEAVE_S * 1000))


def request_frame(request: Request) -> Frame | None:
    """Return the frame that a request navigates, or None for a tab that has no page yet."""
    from playwright.async_api import Error

    try:
        return request.frame
    except Error:
        return None
