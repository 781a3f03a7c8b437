"""Where the tabs of a browser go: what waits for an answer, and what the rules of the pool keep them from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hermes_exec.tools.browser.driver import quietly

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Frame, Page, Request, Response

    from hermes_exec.slot.slot import Slot


class Navigation:
    """Watches the navigations of all tabs; `changed` is called when one of them has ended."""

    def __init__(self, slot: Slot, changed: Callable[[], None]) -> None:
        self._slot, self._rules, self._changed = slot, slot.browser_rules, changed
        self._context: BrowserContext | None = None
        self._waiting: set[Request] = set()
        self._aborted = False
        self._refused: tuple[str, str] | None = None
        self._checks: set[asyncio.Future[None]] = set()
        self._withdrawn: tuple[str, str] | None = None

    def options(self) -> list[str]:
        """Chromium's options that hold the rules, whatever a page does."""
        rules, slot = self._rules, self._slot
        resolver = rules.resolver_rules(network=slot.network, own_loopback=slot.own_loopback)
        by_name = rules.allow_hosts or rules.refuse_hosts  # which a proxy would not know
        return [f"--host-resolver-rules={resolver}"] * bool(resolver) + ["--no-proxy-server"] * bool(by_name)

    def watch(self, context: BrowserContext) -> None:
        """Watch all that the tabs of a context ask for."""
        self._context = context
        context.on("request", self._on_request)
        context.on("requestfinished", self._on_finished)
        context.on("requestfailed", self._on_failed)
        context.on("response", self._on_response)

    def watch_page(self, page: Page) -> None:
        """Watch a tab that was opened, which has arrived at its first page."""
        page.on("framenavigated", self._on_navigated)
        self._on_navigated(page.main_frame)

    @property
    def waiting(self) -> str | None:
        """The URL of a navigation that waits for its answer."""
        return next((request.url for request in self._waiting), None)

    def forget(self) -> None:
        """Wait for none of those that were begun."""
        self._waiting.clear()

    def take_aborted(self) -> bool:
        """Whether one was broken off since the last time, as when it turns out to be a download."""
        aborted, self._aborted = self._aborted, False
        return aborted

    def refusal(self, url: str) -> str | None:
        """Why a URL may not be opened; None when it may."""
        return self._rules.refusal(url, network=self._slot.network, own_loopback=self._slot.own_loopback)

    def take_refused(self) -> tuple[str, str] | None:
        """The URL that the rules kept a page from opening since the last time, and why."""
        refused, self._refused = self._refused, None
        return refused

    async def take_withdrawn(self) -> tuple[str, str] | None:
        """The URL of a page or a frame for which all pages were left since the last time, and why. Waits until it is
        known of those that are there.
        """
        while self._checks:
            await asyncio.wait(self._checks)
        withdrawn, self._withdrawn = self._withdrawn, None
        return withdrawn

    def close(self) -> None:
        """End what still checks a page."""
        for check in list(self._checks):
            check.cancel()

    def _on_request(self, request: Request) -> None:
        if request.is_navigation_request():
            frame = _frame_of(request)
            if frame is None or frame.parent_frame is None:
                self._waiting.add(request)

    def _on_navigated(self, frame: Frame) -> None:
        if frame.parent_frame is None:  # the rest of a page that arrives is not waited for
            self._waiting = {request for request in self._waiting if _frame_of(request) not in (None, frame)}
            self._changed()

    def _on_finished(self, request: Request) -> None:
        self._waiting.discard(request)
        self._changed()

    def _on_failed(self, request: Request) -> None:
        if request in self._waiting:
            self._on_finished(request)
            self._aborted = "ERR_ABORTED" in (request.failure or "")
        if request.is_navigation_request() and (why := self.refusal(request.url)) is not None:
            self._refused = (request.url, why)

    def _on_response(self, response: Response) -> None:
        if response.request.is_navigation_request():
            check = asyncio.ensure_future(quietly(lambda: self._check_address(response)))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)

    async def _check_address(self, response: Response) -> None:
        """Leave all pages when a name has led one, or a frame, to where the rules let none be."""
        host, server = urlsplit(response.url).hostname or "", await response.server_addr()
        address = None if server is None else server["ipAddress"].strip("[]")
        where = {"network": self._slot.network, "own_loopback": self._slot.own_loopback}
        if address is not None and (why := self._rules.address_refusal(host, address, **where)) is not None:
            self._withdrawn = (response.url, why)
            assert self._context is not None
            for page in self._context.pages:
                await quietly(partial(page.goto, "about:blank"))


def _frame_of(request: Request) -> Frame | None:
    """The frame that a request navigates; None when that is a tab that has no page yet."""
    from playwright.async_api import Error

    try:
        return request.frame
    except Error:
        return None
