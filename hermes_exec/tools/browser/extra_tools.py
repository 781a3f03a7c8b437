"""The browser tools of Playwright's MCP server that Hermes has not: waiting, tabs, the mouse, requests and storage."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from hermes_exec.errors import OutputLimitExceeded
from hermes_exec.tools.browser.marks import FRAME_S
from hermes_exec.tools.browser.results import ACTION_S, failure, report_changes, shorten_url, take_snapshot
from hermes_exec.tools.browser.tools import browser_tool, find_element, format_reference
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.os_errors import translate_os_errors

if TYPE_CHECKING:
    from playwright.async_api import Frame, Page

    from hermes_exec.tools.browser.browser import RunningBrowser
    from hermes_exec.tools.state.tool_state import ToolState

JsonObject = dict[str, Any]
WAIT_S = 30.0
POLL_S = 0.2
MAX_TABS = 50
MAX_STATE_BYTES = 4 << 20
MAX_ORIGINS = 100
"""The maximum number of origins whose storage is restored: each takes a page of its own for a moment."""


@browser_tool
async def wait_for(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:
    """Wait for a time, or at most that time until a text is shown or gone."""
    text, gone, limit_s = arguments.get("text"), arguments.get("textGone"), arguments.get("time")
    if "" in (text, gone):
        raise ToolFailure("bad_value", "The text to wait for is empty.", success=False)
    page, before, begun_at = running.tabs.page, running.tabs.page.url, anyio.current_time()
    if text is None and gone is None:
        if limit_s is None:
            raise ToolFailure("missing_argument", "Name what to wait for: 'time', 'text' or 'textGone'.", success=False)
        await anyio.sleep(limit_s)
    else:
        limit_s = WAIT_S if limit_s is None else limit_s
        with anyio.move_on_after(limit_s) as waiting:
            while not await _is_met(running, text, gone):  # noqa: ASYNC110 -- a page reports no texts
                await anyio.sleep(POLL_S)
        if waiting.cancelled_caught:
            what = " and ".join(
                [f"{text!r} is not shown"] * (text is not None) + [f"{gone!r} is not gone"] * (gone is not None)
            )
            raise failure("timeout", f"After {limit_s:g} s, {what}. See the page with browser_snapshot.", running)
    waited_s = round(anyio.current_time() - begun_at, 1)
    return {"waited_s": waited_s, **await report_changes(running, state, before, page)}


async def _is_met(running: RunningBrowser, text: str | None, gone: str | None) -> bool:
    """Return whether the current tab shows `text`, and no longer shows `gone`. None stands for no condition."""
    return (text is None or await _shows(running, text) is True) and (
        gone is None or await _shows(running, gone) is False
    )


async def _shows(running: RunningBrowser, text: str) -> bool | None:
    """Return whether the current tab or one of its frames shows a text; None if the tab does not respond.

    Raises:
        ToolFailure: If a dialog opens, which blocks the page.
    """
    from playwright.async_api import Error

    async def find(frame: Frame) -> bool | None:
        with anyio.move_on_after(FRAME_S):
            try:
                return await frame.get_by_text(text).filter(visible=True).count() > 0
            except Error:
                if running.ended or frame.page.is_closed():
                    raise
        return None  # it navigates, is gone, or hangs

    frames = running.tabs.page.frames
    answers = None if running.dialogs.open else await running.act(lambda: asyncio.gather(*map(find, frames)))
    if answers is None:
        raise failure("dialog_open", "A dialog holds the page.", running)
    return True if True in answers else answers[0]


@browser_tool
async def tabs(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:
    """List the tabs, or open, select or close one."""
    action, index, pages = arguments["action"], arguments.get("index"), running.tabs.pages
    page = running.tabs.current
    if action in ("select", "close") and index is not None:
        if index >= len(pages):
            message = f"There is no tab {index}: there are {len(pages)}, from 0 on. See them with the action 'list'."
            raise ToolFailure("not_found", message, success=False)
        page = pages[index]
    if action == "select":
        if index is None:
            raise ToolFailure("missing_argument", "action='select' needs the argument 'index'.", success=False)
        running.tabs.select(pages[index])
        await running.act(pages[index].bring_to_front)
    elif action == "new":
        if len(pages) >= MAX_TABS:
            message = f"There are {len(pages)} tabs, and at most {MAX_TABS} can be opened: close one first."
            raise ToolFailure("bad_value", message, success=False)
        await running.context.new_page()
    elif action == "close" and page is not None:
        await running.act(page.close)
    listing = await _list_tabs(running)
    if action == "list" or running.tabs.current is None:
        return {"tabs": listing}
    return {**await take_snapshot(running, state, running.tabs.page, title=True), "tabs": listing}


async def _list_tabs(running: RunningBrowser) -> list[JsonObject]:
    """Return the index, URL and title of each tab, and which one is current. A tab that hangs has no title."""
    from playwright.async_api import Error

    async def describe(index: int, page: Page) -> JsonObject:
        fields: JsonObject = {"index": index, "url": shorten_url(page.url), "current": page is running.tabs.current}
        if running.navigation.page_refusal(page) is None:
            with anyio.move_on_after(FRAME_S):
                try:
                    fields["title"] = shorten_url(await page.title())
                except Error:
                    return fields  # it navigates, or has crashed
        return fields

    return list(await asyncio.gather(*(describe(index, page) for index, page in enumerate(running.tabs.pages))))


@browser_tool
async def hover(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:
    """Move the mouse over an element."""
    page, before = running.tabs.page, running.tabs.page.url
    locator = await find_element(running, arguments["ref"])
    await running.act(lambda: locator.hover(timeout=ACTION_S * 1000))
    return {"hovered": format_reference(arguments["ref"]), **await report_changes(running, state, before, page)}


@browser_tool
async def drag(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:
    """Drag an element to another one with the mouse."""
    page, before = running.tabs.page, running.tabs.page.url
    start = await find_element(running, arguments["startRef"])
    end = await find_element(running, arguments["endRef"])
    await running.act(lambda: start.drag_to(end, timeout=ACTION_S * 1000))
    places = {"dragged": format_reference(arguments["startRef"]), "to": format_reference(arguments["endRef"])}
    return {**places, **await report_changes(running, state, before, page)}


@partial(browser_tool, allow_dialog=True)
async def network_requests(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:  # noqa: ARG001
    """Return the requests of the current tab since it opened its page."""
    part = arguments.get("filter") or ""
    requests = [logged for logged in running.requests.of_page(running.tabs.page) if part in logged.url]
    shown = [logged.describe(running.passwords) for logged in requests if arguments["static"] or not logged.is_static]
    return {"requests": shown, "count": len(shown), "static_left_out": len(requests) - len(shown)}


@browser_tool
async def storage_state(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:
    """Save the cookies and the local storage to a file of the slot, which only its owner can read."""
    path = state.resolve(arguments["filename"], "filename")
    content = await running.act(running.context.storage_state)
    if content is None:
        raise failure("dialog_open", "A dialog holds the page.", running)
    data = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
    if len(data) > MAX_STATE_BYTES:
        message = f"The storage has {len(data):,} bytes, more than {MAX_STATE_BYTES:,}: read parts by browser_console."
        raise ToolFailure("too_large", message, success=False)
    with translate_os_errors(arguments["filename"]):
        await state.slot.files.write_bytes(path, data, mode=0o600)
    return {"path": path, "cookies": len(content["cookies"]), "origins": len(content["origins"])}


@browser_tool
async def set_storage_state(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:
    """Replace the cookies and the local storage by those in a file of the slot."""
    from playwright.async_api import Error

    path = state.resolve(arguments["filename"], "filename")
    try:
        with translate_os_errors(arguments["filename"]):
            data = await state.slot.files.read_bytes(path, limit_bytes=MAX_STATE_BYTES)
        content = json.loads(data)
        cookies, origins = content["cookies"], content["origins"]
        if not (isinstance(cookies, list) and isinstance(origins, list)):
            raise TypeError
        if len(origins) > MAX_ORIGINS:
            raise ToolFailure("too_large", f"{path} has more than {MAX_ORIGINS} origins.", success=False)
        await running.act(lambda: running.context.set_storage_state({"cookies": cookies, "origins": origins}))
    except OutputLimitExceeded:
        raise ToolFailure("too_large", f"{path} has more than {MAX_STATE_BYTES:,} bytes.", success=False) from None
    except (ValueError, TypeError, KeyError, RecursionError):
        message = f"{path} is no storage state: write one with browser_storage_state."
        raise ToolFailure("bad_value", message, success=False) from None
    except Error as error:
        if running.ended:
            raise
        reason = str(error).partition("\n")[0][:300]
        message = f"{path} is no storage state that the browser accepts: {reason}"
        raise ToolFailure("bad_value", message, success=False) from None
    return {"cookies": len(cookies), "origins": len(origins), "note": "Open the page again: it is not reloaded."}
