"""The tabs of a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec.tools.browser.error_hints import PAGE_CRASHED
from hermes_exec.tools.browser.playwright_driver import ignore_errors
from hermes_exec.tools.browser.sessions import new_session
from hermes_exec.tools.call.failure import ToolFailure

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, FileChooser, Frame, Page

    from hermes_exec.tools.browser.navigation import Navigation


class Tabs:
    """All tabs of one browser. The current tab is the one opened last, unless another one was selected since."""

    def __init__(self, navigation: Navigation) -> None:
        self.chooser: FileChooser | None = None
        """The file chooser that a page has opened, until it gets its files."""
        self._chooser_reported = False
        self._navigation = navigation
        self._pages: list[Page] = []
        self._selected: Page | None = None
        """The current tab, if it is not the one opened last."""
        self._crashed: set[Page] = set()

    def watch(self, context: BrowserContext) -> None:
        """Track the tabs of a context from now on."""
        context.on("page", self._on_page)

    @property
    def page(self) -> Page:
        """The current tab, in which the tools work.

        Raises:
            ToolFailure: If there is none, if it crashed, or if it shows a forbidden page.
        """
        if self.crashed:
            raise ToolFailure("page_crashed", PAGE_CRASHED, success=False)
        page = self.current
        if page is None:
            raise ToolFailure("no_page", "All tabs are closed. Open a page with browser_navigate.", success=False)
        if (forbidden := self._navigation.page_refusal(page)) is not None:
            raise forbidden
        return page

    @property
    def current(self) -> Page | None:
        """The current tab, also if it cannot be used; None if all are closed."""
        return self._selected or (self._pages[-1] if self._pages else None)

    @property
    def crashed(self) -> bool:
        """Whether the current tab has crashed."""
        return self.current in self._crashed

    @property
    def pages(self) -> list[Page]:
        """All tabs in the order of their opening."""
        return list(self._pages)

    def select(self, page: Page) -> None:
        """Make a tab the current one, until it is closed or another one opens."""
        self._selected = page

    def take_current(self) -> Page | None:
        """Remove and return the current tab, if there is one. The one opened last becomes current."""
        if (page := self.current) is not None:
            self._on_close(page)
        return page

    def _on_page(self, page: Page) -> None:
        self._pages.append(page)
        self._selected = None
        page.on("close", self._on_close)
        page.on("crash", self._on_crash)
        page.on("filechooser", self._on_chooser)
        page.on("framenavigated", self._on_navigated)
        self._navigation.watch_page(page)

    def _on_close(self, page: Page) -> None:
        if page in self._pages:
            self._pages.remove(page)
        if page is self._selected:
            self._selected = None
        self._crashed.discard(page)

    def _on_crash(self, page: Page) -> None:
        if page in self._pages:
            self._crashed.add(page)

    def _on_chooser(self, chooser: FileChooser) -> None:
        self.chooser, self._chooser_reported = chooser, False

    def take_chooser(self) -> bool:
        """Return whether a file chooser has opened that was not reported."""
        was_reported, self._chooser_reported = self._chooser_reported, True
        return self.chooser is not None and not was_reported

    def _on_navigated(self, frame: Frame) -> None:
        if frame.parent_frame is None:
            self.chooser = None

    async def find(self, target: str | None) -> Page:
        """Return the current tab, or the one with this DevTools id.

        Raises:
            ToolFailure: If there is no such tab.
        """
        if target is None:
            return self.page
        for page in self._pages:
            session = await new_session(page)
            info = await session.send("Target.getTargetInfo")
            await ignore_errors(session.detach)
            if info["targetInfo"]["targetId"] == target:
                return page
        raise ToolFailure("not_found", f"There is no tab with the target_id {target!r}.", success=False)
