"""The browser tools: their actions in the page, and their results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import anyio

from hermes_exec.errors import OutcomeUnknown
from hermes_exec.tools.browser import fields
from hermes_exec.tools.browser.browser import ANSWER_S, VIEWPORT
from hermes_exec.tools.browser.error_hints import PAGE_CRASHED, explain_error
from hermes_exec.tools.browser.marks import FRAME_S
from hermes_exec.tools.browser.navigation import policy_failure
from hermes_exec.tools.browser.playwright_driver import PlaywrightDriverLost, ignore_errors
from hermes_exec.tools.browser.results import (
    ACTION_S,
    LOAD_S,
    failure,
    finish_navigation,
    report_changes,
    report_events,
    report_missing,
    take_snapshot,
)
from hermes_exec.tools.browser.sessions import frame_tree, new_session
from hermes_exec.tools.browser.slot_browser import browser_of_slot
from hermes_exec.tools.browser.vision import IMAGES, screenshot
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.results import CallOutcome
from hermes_exec.tools.state.tool_state import Tool, ToolState

if TYPE_CHECKING:
    from playwright.async_api import Frame, Locator

    from hermes_exec.tools.browser.browser import RunningBrowser
    from hermes_exec.tools.browser.slot_browser import SlotBrowser

JsonObject = dict[str, Any]
Work = Callable[["RunningBrowser", ToolState, JsonObject], Awaitable[JsonObject]]
"""A tool's action in the browser. PNG images of its result are in `IMAGES`."""

NAVIGATION_S = 60.0
CALL_S = 90.0
MAX_CDP_S = 300.0
SCROLL_PX = 500
RESULT_CHARS = 20_000
HTTP_ERROR = 400
DOWNLOAD_LINK = "xpath=ancestor-or-self::a[@download]"
RESERVED_METHODS = ("Browser.", "Target.", "Fetch.", "Tethering.", "SystemInfo.", "IO.", "Page.setDownloadBehavior")
"""DevTools domains and commands that the tools themselves and the rules of the pool depend on."""
READ_ONLY_METHODS = frozenset({"Target.getTargets", "Target.getTargetInfo", "Browser.getVersion"})


def browser_tool(work: Work, *, allow_dialog: bool = False, opens: bool = False, within_s: float = CALL_S) -> Tool:
    """Make a tool that works in the slot's browser: calls run one at a time, and Playwright's errors become results.

    With `allow_dialog`, the tool also works while a dialog blocks the page. With `opens`, the tool opens a page, so the
    state of the previous page does not matter.
    """

    @wraps(work)
    async def call(state: ToolState, arguments: JsonObject) -> CallOutcome:
        try:
            return await attempt(state, arguments)
        except PlaywrightDriverLost:
            if not opens or browser_of_slot(state.slot).was_used:
                raise
            return await attempt(state, arguments)

    async def attempt(state: ToolState, arguments: JsonObject) -> CallOutcome:
        from playwright.async_api import Error
        from playwright.async_api import TimeoutError as PlaywrightTimeout

        owner = browser_of_slot(state.slot)
        async with owner.use() as running:
            running.begin()
            await _check_withdrawal(running, tell=not opens)
            if running.dialogs.open and not allow_dialog:
                raise failure("dialog_open", "A dialog holds the page.", running)
            data: JsonObject | None = None
            try:
                with anyio.move_on_after(within_s):
                    # A page does not respond during a navigation.
                    elsewhere = not opens and running.navigation.waiting is not None
                    fields = await finish_navigation(running) if elsewhere else {}
                    data = {**fields, **await work(running, state, arguments)}
            except ToolFailure as failed:
                await _check_running(owner, running)
                failed.fields.update(owner.take_loss())
                raise
            except Error as error:
                await _check_running(owner, running)
                await _check_withdrawal(running)
                if "Target crashed" in str(error):
                    raise failure("page_crashed", PAGE_CRASHED, running) from None
                kind = "timeout" if isinstance(error, PlaywrightTimeout) else "browser_error"
                raise failure(kind, explain_error(error), running) from None
            await _check_withdrawal(running)
            if data is None:
                raise failure(
                    "timeout", f"The page did not respond within {within_s:g} s. Try browser_navigate.", running
                )
            data.update(owner.take_loss())
            await running.downloads.settle()
        images = data.pop(IMAGES, ())
        events = {name: value for name, value in report_events(running).items() if name not in data}
        return CallOutcome({"success": True, **data, **events}, images=images)

    return call


async def _check_running(owner: SlotBrowser, running: RunningBrowser) -> None:
    """Raise if an error is more than an error of the page, as `RunningBrowser.check` does.

    Raises:
        OutcomeUnknown: If the browser ended with its tabs, so effects of this call may have happened.
    """
    try:
        await running.check()
    except PlaywrightDriverLost as error:
        await owner.give_up(running)
        if not owner.was_used:
            raise
        raise OutcomeUnknown(f"{error}. The action of this call may have happened") from error


async def _check_withdrawal(running: RunningBrowser, *, tell: bool = True) -> None:
    """Raise ToolFailure if all pages were left since the last call because of a forbidden URL.

    Downloads from that URL are discarded first.
    """
    withdrawal = await running.navigation.take_withdrawal()
    if withdrawal is not None and tell:
        running.downloads.refuse(*withdrawal)
        await running.downloads.settle()
        raise policy_failure(*withdrawal)


def _locator(running: RunningBrowser, ref: str) -> Locator:
    return running.tabs.page.locator(f"aria-ref={ref.strip().removeprefix('@').removeprefix('ref=')}")


async def find_element(running: RunningBrowser, ref: str) -> Locator:
    """Return the element of a reference from the last snapshot.

    Raises:
        ToolFailure: If there is none.
    """
    from playwright.async_api import Error

    locator = _locator(running, ref)
    count: int | None = 0
    try:
        if running.last_tree:
            count = await running.act(locator.count)
    except Error as error:
        if "Invalid frame" not in str(error):
            raise
    if count == 0:
        message = (
            f"There is no element {ref!r}: references are valid for the last snapshot only. Call browser_snapshot."
        )
        raise ToolFailure("not_found", message, success=False)
    return locator


async def _is_download(locator: Locator) -> bool:
    """Return whether an element is part of a download link. A page that is navigating counts as having none."""
    from playwright.async_api import Error

    try:
        return await locator.locator(DOWNLOAD_LINK).count() > 0
    except Error:
        return False


def format_reference(ref: str) -> str:
    """Return a reference as results show it, with an @."""
    return ref if ref.startswith("@") else f"@{ref}"


def _complete_url(text: str) -> str:
    """Return a complete URL for one as people write it."""
    text = text.strip()
    if text.startswith("/"):
        return f"file://{text}"
    head = text.partition("/")[0]
    if "://" in text or head.partition(":")[0] in {"about", "data", "blob", "file", "javascript"}:
        return text
    local = head.partition(":")[0] in {"localhost", "127.0.0.1"} or head.startswith("[")
    return f"{'http' if local else 'https'}://{text}"


@partial(browser_tool, opens=True)
async def navigate(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:
    """Open a URL and take a compact snapshot."""
    from playwright.async_api import Error
    from playwright.async_api import TimeoutError as PlaywrightTimeout

    url = _complete_url(arguments["url"])
    if (reason := running.navigation.refusal(url)) is not None:
        raise policy_failure(url, reason)
    page = await running.usable_page()
    running.navigation.take_refusal()
    begun_at, error_pages = anyio.current_time(), running.navigation.error_pages
    try:
        answer = await running.act(lambda: page.goto(url, wait_until="commit", timeout=NAVIGATION_S * 1000))
        has_arrived = await running.wait_for_document(page, begun_at + NAVIGATION_S - anyio.current_time())
    except (PlaywrightTimeout, anyio.get_cancelled_exc_class()):
        with anyio.move_on_after(ANSWER_S, shield=True):
            await running.stop_loading()
        raise
    except Error as error:
        aborted = "Download is starting" in str(error) or "ERR_ABORTED" in str(error)
        if "net::ERR_" in str(error) and not aborted:
            await running.wait_for_error_page(error_pages)
        if (refusal := running.navigation.take_refusal()) is not None:
            raise policy_failure(*refusal) from None
        if aborted:
            await running.wait_for_arrival()
            if running.downloads.has_begun:
                return {"url": url, "title": "", "snapshot": "(the URL is a download)", "element_count": 0}
        raise
    if not has_arrived:
        await running.stop_loading()
    if not running.dialogs.open and not running.navigation.late_parts(page):
        with anyio.move_on_after(LOAD_S):
            await running.act(lambda: page.wait_for_load_state("load", timeout=0))
    await running.settle(page)
    fields = {**await finish_navigation(running), **await take_snapshot(running, state, page, title=True)}
    if not has_arrived:
        fields.update(report_missing([page.url]))
    if answer is not None and answer.status >= HTTP_ERROR:
        fields["status"] = answer.status
    return fields


@partial(browser_tool, allow_dialog=True)
async def snapshot(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:
    """Return the accessibility tree of the page."""
    page = running.tabs.page
    data = await take_snapshot(running, state, page, full=arguments["full"])
    if len(page.frames) > 1:
        # A page behind a dialog accepts no new session.
        frames = None if running.dialogs.open else await running.act(partial(frame_tree, page))
        data["frame_tree"] = frames or [{"url": frame.url, "name": frame.name} for frame in page.frames]
    return data


@browser_tool
async def click(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:
    """Click an element."""
    from playwright.async_api import TimeoutError as PlaywrightTimeout

    page, before = running.tabs.page, running.tabs.page.url
    locator = await find_element(running, arguments["ref"])
    begun_before = running.navigation.begun_count
    downloads = False

    async def check_download() -> None:
        nonlocal downloads
        downloads = await _is_download(locator)

    try:
        # The browser answers the second one before it presses the mouse button.
        await running.act(lambda: asyncio.gather(locator.click(timeout=ACTION_S * 1000), check_download()))
    except PlaywrightTimeout:
        if running.navigation.begun_count == begun_before:  # otherwise the click happened, and its navigation is slow
            raise
    if downloads:
        running.navigation.expect_download()
    return {"clicked": format_reference(arguments["ref"]), **await report_changes(running, state, before, page)}


@browser_tool
async def type_text(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:
    """Replace the text of a field, select options of a list, or set files of the slot for a file field."""
    page, before, text = running.tabs.page, running.tabs.page.url, arguments["text"]
    locator = await find_element(running, arguments["ref"])
    await fields.fill(running, state, locator, text, ACTION_S)
    typed_fields = {"typed": f"*** ({len(text)} characters)", "element": format_reference(arguments["ref"])}
    return {**typed_fields, **await report_changes(running, state, before, page)}


@browser_tool
async def scroll(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:
    """Turn the mouse wheel over the middle of the page."""
    page = running.tabs.page
    width, height = VIEWPORT
    await page.mouse.move(width / 2, height / 2)
    distance = SCROLL_PX if arguments["direction"] == "down" else -SCROLL_PX
    await running.act(lambda: page.mouse.wheel(0, distance))
    await anyio.sleep(0.1)
    return {"scrolled": arguments["direction"], **await report_changes(running, state, page.url, page)}


@browser_tool
async def back(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:  # noqa: ARG001
    """Go back in the history of the tab; close a tab without history."""
    page = running.tabs.page
    session = await new_session(page)
    history = await session.send("Page.getNavigationHistory")
    await ignore_errors(session.detach)
    before = [entry["url"] for entry in history["entries"][: history["currentIndex"]]]
    if before in ([], ["about:blank"]):  # the first page of every tab
        if len(running.tabs.pages) == 1:
            raise ToolFailure("not_found", "There is no page before this one.", success=False)
        await page.close()
        return await take_snapshot(running, state, running.tabs.page)
    await running.act(lambda: page.go_back(wait_until="domcontentloaded", timeout=NAVIGATION_S * 1000))
    return await take_snapshot(running, state, page)


@browser_tool
async def press(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:
    """Press a key, such as Enter or Control+a."""
    page, before = running.tabs.page, running.tabs.page.url
    await running.act(lambda: page.keyboard.press(arguments["key"]))
    return {"pressed": arguments["key"], **await report_changes(running, state, before, page)}


@browser_tool
async def get_images(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:  # noqa: ARG001
    """Return the images of the page that have an address."""
    script = """() => [...document.images].filter(i => i.src && !i.src.startsWith('data:')).map(
        i => ({src: i.src, alt: i.alt, width: i.naturalWidth, height: i.naturalHeight}))"""
    frames, missing = running.tabs.page.frames, list[str]()

    async def read(frame: Frame) -> list[JsonObject]:
        with anyio.move_on_after(FRAME_S if frame.parent_frame else None):
            return list(await frame.evaluate(script))
        missing.append(frame.url or "a frame")
        return []

    answers = await running.act(lambda: asyncio.gather(*map(read, frames))) or []
    images = [image for answer in answers for image in answer]
    return {"images": images, "count": len(images), **(report_missing(missing) if missing else {})}


@partial(browser_tool, allow_dialog=True)
async def console(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:  # noqa: ARG001
    """Return the console messages and errors of the page, or the value of an expression."""
    if (expression := arguments.get("expression")) is not None:
        page = running.tabs.page
        try:
            value = await running.act(lambda: page.evaluate(expression))
        except ValueError as error:
            message = f"The value cannot be read ({error}). Convert it to a string, for example with String(...)."
            raise ToolFailure("bad_value", message, success=False) from None
        kind = "null" if value is None else type(value).__name__
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except (ValueError, RecursionError):  # the value contains itself
            text = value = repr(value)
        shown_value = value if len(text) <= RESULT_CHARS else text[:RESULT_CHARS] + "... (cut)"
        return {"result": shown_value, "result_type": kind}
    data = running.log.report(running.left_out)
    if arguments["clear"]:
        running.log.forget(running.left_out)
    return data


@partial(browser_tool, allow_dialog=True)
async def dialog(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:
    """Answer a dialog."""
    dialog_id = arguments.get("dialog_id")
    matches = [opened for opened in running.dialogs.open if dialog_id in (None, opened.id)]
    if not matches:
        message = f"There is no open dialog{'' if dialog_id is None else f' {dialog_id!r}'}."
        raise ToolFailure("not_found", message, success=False)
    accept = arguments["action"] == "accept"
    await running.dialogs.answer(matches[0], accept=accept, text=arguments.get("prompt_text"))
    page, before = running.tabs.page, running.tabs.page.url
    return {
        "handled": arguments["action"],
        "dialog_id": matches[0].id,
        **await report_changes(running, state, before, page),
    }


@partial(browser_tool, allow_dialog=True, within_s=MAX_CDP_S + ACTION_S)
async def cdp(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:  # noqa: ARG001
    """Send a DevTools command to a tab or a frame."""
    method = arguments["method"]
    if method.startswith(RESERVED_METHODS) and method not in READ_ONLY_METHODS:
        message = f"{method} is not allowed: the tools and the rules of this browser depend on it."
        raise ToolFailure("blocked_by_policy", message, success=False, blocked_by_policy=f"{method} is not allowed")
    timeout_s = min(float(arguments.get("timeout") or 30), MAX_CDP_S)
    if timeout_s <= 0:
        raise ToolFailure("bad_value", "'timeout' must be above 0.", success=False)
    page, frame = await running.tabs.find(arguments.get("target_id")), arguments.get("frame_id")
    if running.dialogs.open and frame is not None:  # its processes accept no new session
        raise failure("dialog_open", "A dialog holds the page and its frames.", running)
    session = await new_session(page, frame)
    try:
        with anyio.fail_after(timeout_s):
            return {"result": await running.act(lambda: session.send(method, arguments.get("params") or {}))}
    except TimeoutError:
        raise ToolFailure("timeout", f"{method} was not answered within {timeout_s:g} s.", success=False) from None
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(1):
            await ignore_errors(session.detach)


vision = browser_tool(screenshot)


async def close(state: ToolState, arguments: JsonObject) -> CallOutcome:  # noqa: ARG001
    """End the browser with its tabs, cookies and profile."""
    owner = browser_of_slot(state.slot)
    async with owner.lock:
        await owner.aclose()
        owner.take_loss()
    return CallOutcome({"success": True, "closed": True})
