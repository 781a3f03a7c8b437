"""A screenshot of the page, optionally with the references of its elements drawn over them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from hermes_exec.tools.browser.annotations import draw_references
from hermes_exec.tools.call.budget import result_path
from hermes_exec.tools.call.failure import ToolFailure

if TYPE_CHECKING:
    from hermes_exec.tools.browser.browser import RunningBrowser
    from hermes_exec.tools.state.tool_state import ToolState

JsonObject = dict[str, Any]
SCREENSHOT_S = 10.0
IMAGES = "images of the result"
"""The key of a result's PNG images in its data."""


async def screenshot(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:
    """Take a screenshot: an image for models that accept images, and a file in the slot."""
    page = running.tabs.page
    drawing = draw_references(page, running.navigation.session(page)) if arguments["annotate"] else nullcontext()
    async with drawing as annotations:
        image = await running.act(lambda: page.screenshot(timeout=SCREENSHOT_S * 1000))
    if image is None:
        raise ToolFailure("dialog_open", "A dialog holds the page.", success=False)
    running.screenshots += 1
    path = result_path(state.slot, f"screenshot-{running.screenshots}.png")
    await state.slot.files.write_bytes(path, image)
    data: JsonObject = {"question": arguments["question"], "screenshot_path": path, IMAGES: (image,)}
    if annotations is not None:
        data["annotations"] = annotations
    if not state.options.native_images:
        data["note"] = "You cannot see images; use other tools to work on the file."
    return data
