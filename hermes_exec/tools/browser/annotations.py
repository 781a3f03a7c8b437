"""References drawn over the elements of a page, for a screenshot."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from hermes_exec.tools.browser import snapshot as snapshots
from hermes_exec.tools.browser.marks import show_marks
from hermes_exec.tools.browser.playwright_driver import ignore_errors

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Frame, Page

JsonObject = dict[str, Any]
_REF = re.compile(r"\[ref=((f\d+)?e\d+)\]")
_BOX = re.compile(r" \[box=(-?[\d.]+),(-?[\d.]+),([\d.]+),([\d.]+)\]")
_DRAW = """boxes => new Promise(resolve => {
    const key = (...box) => box.map(Math.round).join();
    const refs = {};
    for (const [ref, ...box] of boxes) (refs[key(...box)] ??= []).push(ref);
    const refsOf = ({ x, y, width, height }) => refs[key(x, y, width, height)];
    const inside = root =>
        [...root.querySelectorAll('*')].flatMap(e => e.shadowRoot ? [e, ...inside(e.shadowRoot)] : [e]);
    const elements = document.body ? inside(document).filter(e => refsOf(e.getBoundingClientRect())) : [];
    if (!elements.length) return resolve({});
    const observer = new IntersectionObserver(entries => {
        observer.disconnect();
        const drawn = {};
        const layer = document.createElement('div');
        layer.id = 'hermes-annotations';
        for (const { boundingClientRect, intersectionRatio, intersectionRect } of entries) {
            const inBox = refsOf(boundingClientRect);
            if (!inBox || drawn[inBox[0]] || !intersectionRatio) continue;
            const { x, y, width, height } = intersectionRect;
            for (const ref of inBox) drawn[ref] = [x, y, width, height];
            const box = document.createElement('div');
            box.style.cssText = `position:fixed;left:${x}px;top:${y}px;width:${width}px;height:${height}px;` +
                'outline:2px solid red;z-index:2147483647;pointer-events:none;font:11px monospace;color:white';
            const tag = document.createElement('span');
            tag.style.background = 'red';
            tag.textContent = inBox.map(ref => '@' + ref).join(' ');
            box.append(tag);
            layer.append(box);
        }
        document.body.append(layer);
        resolve(drawn);
    });
    elements.forEach(e => observer.observe(e));
})"""
"""Draw the references of the elements with these boxes around the visible part of each, and return the drawn boxes.

Only visible parts count, because a list that scrolls hides most of its items.
"""
_UNDRAW = "() => document.getElementById('hermes-annotations')?.remove()"
_EDGE = """e => {
    const style = getComputedStyle(e);
    return ['Left', 'Top'].map(side => parseFloat(style[`border${side}Width`]) + parseFloat(style[`padding${side}`]));
}"""
"""The offset of an <iframe>'s document from the corner of the <iframe>."""


@dataclass
class _Document:
    """A document of the page: its frame, the position of its left upper corner in the picture, and the boxes in it."""

    frame: Frame
    left: float = 0.0
    top: float = 0.0
    boxes: dict[str, list[float]] = field(default_factory=dict)


@asynccontextmanager
async def draw_references(page: Page, session: CDPSession | None) -> AsyncIterator[list[JsonObject]]:
    """Draw the references over the visible elements and yield them, each with its element and its box.

    A box is x, y, width and height in pixels of the picture. A document that is not a page, such as an image, has none.
    """
    top, marks = await snapshots.find_marks(page, session)
    if top != "body":
        yield []
        return
    root, timeout_ms = page.locator(marks.selector), snapshots.SNAPSHOT_S * 1000
    tree = show_marks(await root.aria_snapshot(mode="ai", boxes=True, timeout=timeout_ms))
    elements: dict[str, str] = {}
    for line in snapshots.compact(_BOX.sub("", tree)).splitlines():
        if (match := _REF.search(line)) is not None:
            elements[match[1]] = line.strip().removeprefix("- ").partition(" [")[0]
    documents = await _find_documents(page, tree)
    annotations: list[JsonObject] = []
    try:
        for document in documents:
            labels = [[ref, *box] for ref, box in document.boxes.items() if ref in elements]
            for ref, (x, y, *size) in (await document.frame.evaluate(_DRAW, labels)).items():
                box = [x + document.left, y + document.top, *size]
                annotations.append({"ref": f"@{ref}", "element": elements[ref], "box": box})
        yield annotations
    finally:
        for document in documents:
            await ignore_errors(partial(document.frame.evaluate, _UNDRAW))


async def _find_documents(page: Page, tree: str) -> list[_Document]:
    """Return the documents of the page and its frames from a tree with boxes.

    The references of each document have their own prefix.
    """
    documents: dict[str, _Document | None] = {}
    iframe, outer = "", _Document(page.main_frame)
    for line in tree.splitlines():
        ref, box = _REF.search(line), _BOX.search(line)
        if ref is None or box is None:
            continue
        if ref[2] not in documents:
            documents[ref[2]] = await _open_iframe(page, iframe, outer) if documents else outer
        document = documents[ref[2]]
        if document is None:
            continue
        document.boxes[ref[1]] = [float(number) for number in box.groups()]
        if line.lstrip().startswith("- iframe"):
            iframe, outer = ref[1], document
    return [document for document in documents.values() if document is not None]


async def _open_iframe(page: Page, iframe: str, outer: _Document) -> _Document | None:
    """Return the document in the <iframe> with this reference, or None if it is gone."""
    element = await page.query_selector(f"aria-ref={iframe}")
    frame = await element.content_frame() if element is not None else None
    if element is None or frame is None:
        return None
    left, top = await element.evaluate(_EDGE)
    x, y, _, _ = outer.boxes[iframe]
    return _Document(frame, outer.left + x + left, outer.top + y + top)
