"""Results of the browser tools: the page, changes by an action, dialogs, downloads and tabs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from hermes_exec.tools.browser import snapshot as snapshots
from hermes_exec.tools.browser.background_tasks import BackgroundTasks
from hermes_exec.tools.browser.downloads import MAX_URL_CHARS
from hermes_exec.tools.browser.error_hints import PAGE_HANGS
from hermes_exec.tools.call.failure import ToolFailure

if TYPE_CHECKING:
    from playwright.async_api import Page

    from hermes_exec.tools.browser.browser import RunningBrowser
    from hermes_exec.tools.state.tool_state import ToolState

JsonObject = dict[str, Any]

ACTION_S = 10.0
LOAD_S = 5.0
MAX_PAGE_CHANGES = 4
"""The maximum number of further navigations of a page before it is shown."""
MAX_TABS_SHOWN = 10
MAX_MISSING_SHOWN = 5


def failure(kind: str, message: str, running: RunningBrowser) -> ToolFailure:
    """Return an error of a tool, with the other events."""
    return ToolFailure(kind, message, success=False, **report_events(running))


def report_events(running: RunningBrowser) -> JsonObject:
    """Return the fields that every result may have: open dialogs, finished downloads, several tabs.

    The reported dialogs and downloads are not reported again.
    """
    fields: JsonObject = {}
    if running.dialogs.open:
        fields["pending_dialogs"] = [dialog.describe() for dialog in running.dialogs.open]
        fields["hint"] = "A dialog holds the page: answer it with browser_dialog."
    if running.dialogs.past:
        fields["recent_dialogs"] = [dialog.describe() for dialog in running.dialogs.past]
        running.dialogs.past.clear()
    downloads = running.downloads.downloads_to_report()
    if downloads:
        fields["downloads"] = [
            {
                "path": download.path,
                "name": download.name,
                "bytes": download.size,
                "state": "in progress" if download.under_way else download.state,
            }
            for download in downloads
        ]
        for download in downloads:
            download.reported = not download.under_way
    if len(running.tabs.pages) > 1:
        fields["tabs"] = [shorten_url(page.url) for page in running.tabs.pages[-MAX_TABS_SHOWN:]]
        if (current := running.tabs.current) is not None and current is not running.tabs.pages[-1]:
            fields["current_tab"] = running.tabs.pages.index(current)
    return fields


async def take_snapshot(
    running: RunningBrowser, state: ToolState, page: Page, *, full: bool = False, title: bool = False
) -> JsonObject:
    """Return the address and snapshot, and optionally the title, all of the same page."""
    fields: JsonObject = {}
    page_fields, tree = await _read_page(running, page, fields, title=title)
    fields.update(page_fields)
    if tree is None:
        return {**fields, "snapshot": "(a dialog is open)", "element_count": 0}
    text = (tree if full else snapshots.compact(tree)) or "(empty page)"
    count = snapshots.element_count(text)
    return {**fields, "snapshot": await snapshots.fit_snapshot(state.slot, text), "element_count": count}


async def _read_page(
    running: RunningBrowser, page: Page, fields: JsonObject, *, title: bool = False
) -> tuple[JsonObject, str | None]:
    """Return the address and title of a page as fields of a result, and its tree, all of the same page.

    The page may navigate meanwhile. The tree becomes `last_tree`, and `fields` receives the result of the navigation.
    """
    from playwright.async_api import Error

    for attempts_left in reversed(range(MAX_PAGE_CHANGES)):
        url = page.url
        try:
            async with follow_navigation(running, fields) as departure:
                answer = await _tree(running, page)
            title_field = {"title": "" if running.dialogs.open else shorten_url(await page.title())} if title else {}
        except Error as error:
            if not attempts_left or "context was destroyed" not in str(error):
                raise
        else:
            # The tree may be of the previous page, even if the new one has the same address.
            has_stayed = not departure.is_set() or "not_loaded" in fields
            if (page.url == url and has_stayed) or not attempts_left:
                if answer is None:
                    return {"url": shorten_url(page.url), **title_field}, None
                tree, silent_urls = answer
                running.last_tree = snapshots.mask_secrets(tree, running.passwords)
                if (missing := [*running.navigation.late_parts(page), *silent_urls]) and "not_loaded" not in fields:
                    fields.update(report_missing(missing))
                return {"url": shorten_url(page.url), **title_field}, running.last_tree
        fields.update(await finish_navigation(running))
    raise AssertionError


def report_missing(urls: Sequence[str]) -> JsonObject:
    """Return the fields of a result about parts of a page that did not respond."""
    missing = ", ".join(map(shorten_url, urls[:MAX_MISSING_SHOWN]))
    return {"not_loaded": missing, "note": f"The page is shown without these parts, which did not respond: {missing}"}


async def _tree(running: RunningBrowser, page: Page) -> tuple[str, list[str]] | None:
    """Return the tree of a page, and the URLs of frames that are not in it; None if a dialog blocks the page."""
    root, session = None, running.navigation.session(page)
    while root is None and not running.dialogs.open:
        with anyio.move_on_after(ACTION_S) as answering:
            root = await running.act(partial(snapshots.find_marks, page, session))
        if answering.cancelled_caught and running.navigation.waiting is None:
            raise failure("timeout", PAGE_HANGS, running)
    if root is None:
        return None
    tree = await running.act(partial(snapshots.read_tree, page, *root))
    return None if tree is None else (tree, root[1].silent_urls)


@contextlib.asynccontextmanager
async def follow_navigation(running: RunningBrowser, fields: JsonObject) -> AsyncIterator[anyio.Event]:
    """Wait for a navigation that starts inside the block, as `finish_navigation` does.

    Until the navigation ends, a page does not respond. `fields` receives its result. The yielded event is set once a
    navigation has started.
    """
    departure = anyio.Event()

    async def follow() -> None:
        await running.wait_for_departure()
        departure.set()
        fields.update(await finish_navigation(running))

    leave_and_arrive = BackgroundTasks()
    leave_and_arrive.start(follow)
    try:
        yield departure
        if departure.is_set():
            await leave_and_arrive.wait()
    finally:
        leave_and_arrive.cancel()


def shorten_url(url: str) -> str:
    """Shorten a URL for a result."""
    return url if len(url) <= MAX_URL_CHARS else f"{url[:MAX_URL_CHARS]}... (cut)"


async def finish_navigation(running: RunningBrowser) -> JsonObject:
    """Wait for the effects of an action: a navigation, a tab, a download.

    Returns the fields of the result about a navigation that did not end.
    """
    from playwright.async_api import Error

    if (url := await running.wait_for_arrival()) is not None:
        return {"not_loaded": url, "note": f"{url[:200]} did not respond in time, so the page has not changed."}
    with anyio.move_on_after(LOAD_S), contextlib.suppress(Error):
        page = running.tabs.current
        is_late = page is not None and running.navigation.late_parts(page)
        if page in running.navigation.loading and not is_late and not running.dialogs.open:
            await running.act(lambda: page.wait_for_load_state("domcontentloaded", timeout=LOAD_S * 1000))
            if not running.dialogs.open:
                running.navigation.loading.discard(page)
    return {}


async def report_changes(running: RunningBrowser, state: ToolState, before: str, page: Page) -> JsonObject:
    """Return the changes by an action: the address, the tab and, if the options ask for it, the snapshot."""
    await running.settle(page)
    fields = await finish_navigation(running)
    if running.tabs.crashed or not running.tabs.pages:
        return fields
    if running.tabs.take_chooser():
        fields["file_chooser"] = "The page asks for a file: give its path by browser_type with the same ref."
    now = running.tabs.page
    if now is not page:
        fields["new_tab"] = shorten_url(now.url)
    if now.url != before:
        fields["url"] = shorten_url(now.url)
        if (refusal := running.navigation.take_refusal()) is not None:
            fields["blocked_by_policy"] = "{} may not be opened: {}".format(*refusal)
    if state.options.browser_changes and not running.dialogs.open:
        old = running.last_tree
        await _read_page(running, now, fields)
        changes = snapshots.changes(snapshots.compact(old), snapshots.compact(running.last_tree))
        fields["changes"] = changes[: snapshots.LIMIT_CHARS] or "(nothing changed)"
    return fields
