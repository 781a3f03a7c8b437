"""What the results of the browser tools tell: the page, what an action changed, dialogs, downloads and tabs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from hermes_exec.tools.browser import snapshot as snapshots
from hermes_exec.tools.browser.background import Background
from hermes_exec.tools.browser.downloads import LONGEST_URL
from hermes_exec.tools.browser.explained import HANGS
from hermes_exec.tools.call.failure import ToolFailure

if TYPE_CHECKING:
    from playwright.async_api import Page

    from hermes_exec.tools.browser.browser import RunningBrowser
    from hermes_exec.tools.state.tool_state import ToolState

JsonObject = dict[str, Any]

ACTION_S = 10.0
LOAD_S = 5.0
PAGES_ON_THE_WAY = 4
"""How often a page that is opened may lead on to another before it is shown."""
TABS_TOLD = 10


def failure(kind: str, message: str, running: RunningBrowser) -> ToolFailure:
    """An error of a tool, with what else happened."""
    return ToolFailure(kind, message, success=False, **happened(running))


def happened(running: RunningBrowser) -> JsonObject:
    """What the model is told beside any result: open dialogs, finished downloads, several tabs."""
    told: JsonObject = {}
    if running.dialogs.open:
        told["pending_dialogs"] = [dialog.told() for dialog in running.dialogs.open]
        told["hint"] = "A dialog holds the page: answer it with browser_dialog."
    if running.dialogs.past:
        told["recent_dialogs"] = [dialog.told() for dialog in running.dialogs.past]
        running.dialogs.past.clear()
    downloads = running.downloads.untold()
    if downloads:
        told["downloads"] = [
            {
                "path": download.path,
                "name": download.name,
                "bytes": download.size,
                "state": "in progress" if download.under_way else download.state,
            }
            for download in downloads
        ]
        for download in downloads:
            download.told = not download.under_way
    if len(running.tabs.pages) > 1:
        told["tabs"] = [short(page.url) for page in running.tabs.pages[-TABS_TOLD:]]
    return told


async def snapshot_of(
    running: RunningBrowser, state: ToolState, page: Page, *, full: bool = False, title: bool = False
) -> JsonObject:
    """Address and snapshot of a page, and its title when asked for, all of the same one."""
    told: JsonObject = {}
    shown, tree = await _looked(running, page, told, title=title)
    told.update(shown)
    if tree is None:
        return {**told, "snapshot": "(a dialog is open)", "element_count": 0}
    text = (tree if full else snapshots.compact(tree)) or "(empty page)"
    count = snapshots.element_count(text)
    return {**told, "snapshot": await snapshots.fitted(state.slot, text), "element_count": count}


async def _looked(
    running: RunningBrowser, page: Page, told: JsonObject, *, title: bool = False
) -> tuple[JsonObject, str | None]:
    """Address and title of a page as fields of a result, and its tree, all of the same one: it may lead on to another.
    A tree is the `last_tree` from then on. What is to be told of where it led goes into `told`.
    """
    from playwright.async_api import Error

    for more in reversed(range(PAGES_ON_THE_WAY)):
        url = page.url
        try:
            async with leaving(running, told) as left:
                tree = await _tree(running, page)
            named = {"title": "" if running.dialogs.open else short(await page.title())} if title else {}
        except Error as error:
            if not more or "context was destroyed" not in str(error):
                raise
        else:
            # The page that it left may have been looked at, also when the new one has the same address.
            stayed = not left.is_set() or "not_loaded" in told
            if (page.url == url and stayed) or not more:
                if tree is not None:
                    running.last_tree = tree = snapshots.masked(tree, running.passwords)
                return {"url": short(page.url), **named}, tree
        told.update(await arrived(running))
    raise AssertionError


async def _tree(running: RunningBrowser, page: Page) -> str | None:
    """The tree of a page; None when a dialog holds it."""
    top = None
    while top is None and not running.dialogs.open:
        with anyio.move_on_after(ACTION_S) as answering:
            top = await running.act(partial(snapshots.top_of, page))
        if answering.cancelled_caught and running.navigation.waiting is None:
            raise failure("timeout", HANGS, running)
    return None if top is None else await running.act(partial(snapshots.tree_of, page, top))


@contextlib.asynccontextmanager
async def leaving(running: RunningBrowser, told: JsonObject) -> AsyncIterator[anyio.Event]:
    """Give a navigation that begins meanwhile its time, as `arrived` does: until it is there or given up, a page
    answers nothing. What the model is to be told of it goes into `told`. The event is set once one has begun.
    """
    left = anyio.Event()

    async def leave() -> None:
        await running.leave()
        left.set()
        told.update(await arrived(running))

    leave_and_arrive = Background()
    leave_and_arrive.start(leave)
    try:
        yield left
        if left.is_set():
            await leave_and_arrive.wait()
    finally:
        leave_and_arrive.cancel()


def short(url: str) -> str:
    """A URL as results show it."""
    return url if len(url) <= LONGEST_URL else f"{url[:LONGEST_URL]}... (cut)"


async def arrived(running: RunningBrowser) -> JsonObject:
    """Give what an action began its time: a navigation, a tab, a download. Returns what the model is told of it."""
    from playwright.async_api import Error

    if (url := await running.arrive()) is not None:
        return {"not_loaded": url, "note": f"{url[:200]} did not answer in time, so the page stays the one before."}
    with anyio.move_on_after(LOAD_S), contextlib.suppress(Error):
        page = running.tabs.pages[-1] if running.tabs.pages else None
        if page in running.navigation.loading and not running.dialogs.open:
            await running.act(lambda: page.wait_for_load_state("domcontentloaded", timeout=LOAD_S * 1000))
            if not running.dialogs.open:
                running.navigation.loading.discard(page)
    return {}


async def after(running: RunningBrowser, state: ToolState, before: str, page: Page) -> JsonObject:
    """What an action changed: the address, the tab, the snapshot when it was asked for."""
    await running.settle(page)
    told = await arrived(running)
    if running.tabs.crashed or not running.tabs.pages:
        return told
    if running.tabs.take_chooser():
        told["file_chooser"] = "The page asks for a file: give its path by browser_type with the same ref."
    now = running.tabs.page
    if now is not page:
        told["new_tab"] = short(now.url)
    if now.url != before:
        told["url"] = short(now.url)
        if (refused := running.navigation.take_refused()) is not None:
            told["blocked_by_policy"] = "{} may not be opened: {}".format(*refused)
    if state.options.browser_changes and not running.dialogs.open:
        old = running.last_tree
        await _looked(running, now, told)
        changes = snapshots.changes(snapshots.compact(old), snapshots.compact(running.last_tree))
        told["changes"] = changes[: snapshots.LIMIT_CHARS] or "(nothing changed)"
    return told
