"""DevTools sessions with tabs and with the processes of their frames."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import anyio

from hermes_exec.tools.browser.marks import FRAME_S
from hermes_exec.tools.browser.playwright_driver import ignore_errors
from hermes_exec.tools.call.failure import ToolFailure

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, ElementHandle, Frame, Page


async def new_session(page: Page, frame: str | None = None) -> CDPSession:
    """Return a session with a tab, or with the process of the frame with this id.

    Raises:
        ToolFailure: If the tab has no such frame.
    """
    if frame is None:
        return await page.context.new_cdp_session(page)
    async for session, frames in _frame_processes(page):
        if any(message["frame_id"] == frame for message in frames):
            return session
        await ignore_errors(session.detach)
    message = f"There is no frame {frame!r}: browser_snapshot lists their ids in frame_tree."
    raise ToolFailure("not_found", message, success=False)


async def frame_tree(page: Page) -> list[dict[str, object]]:
    """Return the frames of a tab: frame_id, url, name, origin, and whether it has its own process (is_oopif)."""
    frames_of_tab: list[dict[str, object]] = []
    async for session, frames in _frame_processes(page):
        await ignore_errors(session.detach)
        frames_of_tab = frames + frames_of_tab
    return frames_of_tab


async def element_session(element: ElementHandle, page: Page) -> CDPSession:
    """Return a session with the process of a tab's element."""
    frame = await element.owner_frame()
    session = await _session_with(frame) if frame is not None and frame.parent_frame is not None else None
    return session or await new_session(page)


async def _frame_processes(page: Page) -> AsyncIterator[tuple[CDPSession, list[dict[str, object]]]]:
    """Yield a session with each process of the tab's frames, and its frames. The tab's own process is last.

    A process that does not respond is left out.
    """
    for frame in [*reversed(page.frames[1:]), None]:
        process = None
        with anyio.move_on_after(FRAME_S):
            process = await _open_process(page, frame)
        if process is not None:
            yield process


async def _open_process(page: Page, frame: Frame | None) -> tuple[CDPSession, list[dict[str, object]]] | None:
    """Return a session with the process of a frame, or of the tab, and its frames; None if the frame has none."""
    from playwright.async_api import Error

    session = await new_session(page) if frame is None else await _session_with(frame)
    if session is None:
        return None
    try:
        answer = await session.send("Page.getFrameTree")
    except Error:
        if frame is None:
            raise
        return None  # the frame is gone
    return session, _frames_in(answer["frameTree"], own_process=frame is not None)


async def _session_with(frame: Frame) -> CDPSession | None:
    """Return a session with a frame, or None if it shares the process of its parent."""
    from playwright.async_api import Error

    try:
        return await frame.page.context.new_cdp_session(frame)
    except Error:
        return None


def _frames_in(tree: dict[str, Any], *, own_process: bool) -> list[dict[str, object]]:
    """Return the frames of a Page.getFrameTree response; `own_process` is about the first of them."""
    frame = tree["frame"]
    description = {
        "frame_id": frame["id"],
        "url": frame["url"] + frame.get("urlFragment", ""),
        "name": frame.get("name", ""),
        "origin": frame.get("securityOrigin", "").removeprefix("://"),
        "is_oopif": own_process,
    }
    inner = (_frames_in(child, own_process=False) for child in tree.get("childFrames", ()))
    return [description, *itertools.chain.from_iterable(inner)]
