"""A screenshot of the page, with the references of its elements drawn over them when asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hermes_exec.tools.browser import snapshot as snapshots
from hermes_exec.tools.browser.browser import VIEWPORT
from hermes_exec.tools.browser.driver import quietly
from hermes_exec.tools.call.budget import kept_path
from hermes_exec.tools.call.failure import ToolFailure

if TYPE_CHECKING:
    from playwright.async_api import Page

    from hermes_exec.tools.browser.browser import RunningBrowser
    from hermes_exec.tools.state.tool_state import ToolState

JsonObject = dict[str, Any]
SCREENSHOT_S = 10.0
IMAGES = "images of the result"
"""Where the PNG images of a result are in its data."""


async def screenshot(running: RunningBrowser, state: ToolState, arguments: JsonObject) -> JsonObject:
    """A screenshot, as an image for models that see, and as a file in the slot."""
    page = running.page
    annotations = await _annotate(page) if arguments["annotate"] else None
    try:
        image = await running.act(lambda: page.screenshot(timeout=SCREENSHOT_S * 1000))
    finally:
        if annotations is not None:
            await quietly(lambda: page.evaluate(_UNDRAW))
    if image is None:
        raise ToolFailure("dialog_open", "A dialog holds the page.", success=False)
    running.screenshots += 1
    path = kept_path(state.slot, f"screenshot-{running.screenshots}.png")
    await state.slot.files.write_bytes(path, image)
    data: JsonObject = {"question": arguments["question"], "screenshot_path": path, IMAGES: (image,)}
    if annotations is not None:
        data["annotations"] = annotations
    if not state.options.native_images:
        data["note"] = "You cannot see images; the file can be worked on with other tools."
    return data


_REF = r"\[ref=([a-z0-9]+)\]"
_BOX = r" \[box=(-?[\d.]+),(-?[\d.]+),([\d.]+),([\d.]+)\]"
_REF_AND_BOX = f"{_REF}.*{_BOX}"
_DRAW = """boxes => {
    const layer = document.createElement('div');
    layer.id = 'hermes-annotations';
    for (const [name, x, y, w, h] of boxes) {
        const box = document.createElement('div');
        box.style.cssText = `position:fixed;left:${x}px;top:${y}px;width:${w}px;height:${h}px;outline:2px solid red;` +
            'z-index:2147483647;pointer-events:none;font:11px monospace;color:white';
        const tag = document.createElement('span');
        tag.style.background = 'red';
        tag.textContent = name;
        box.append(tag);
        layer.append(box);
    }
    document.body.append(layer);
}"""
_UNDRAW = "() => document.getElementById('hermes-annotations')?.remove()"


async def _annotate(page: Page) -> list[JsonObject]:
    """Draw the references over their elements. None are drawn in a document that is no page, as an image is."""
    if await snapshots.top_of(page) != "body":
        return []
    tree = await page.aria_snapshot(mode="ai", boxes=True, timeout=snapshots.SNAPSHOT_S * 1000)
    width, height = VIEWPORT
    boxes = {ref: [float(number) for number in box] for ref, *box in re.findall(_REF_AND_BOX, tree)}
    found: list[JsonObject] = []
    for line in snapshots.compact(re.sub(_BOX, "", tree)).splitlines():
        if (match := re.search(_REF, line)) is None or match[1] not in boxes:
            continue
        x, y, w, h = boxes[match[1]]
        if x < width and y < height and x + w > 0 and y + h > 0:
            described = line.strip().removeprefix("- ").partition(" [")[0]
            found.append({"ref": f"@{match[1]}", "element": described, "box": [x, y, w, h]})
    await page.evaluate(_DRAW, [[each["ref"], *each["box"]] for each in found])
    return found
