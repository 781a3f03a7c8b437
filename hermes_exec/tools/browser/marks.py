"""Marks for the elements of a page that Playwright's snapshot would treat wrongly.

Elements that can be clicked but have no role get a reference, and frames that do not respond are not waited for. The
marks are in the isolated world in which Playwright takes its snapshots, so a page cannot notice them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Frame, Page

MAX_ELEMENTS = 50_000
"""A larger tree blocks the page for a long time, even after the call has given up."""
FRAME_S = 3.0
"""A frame that does not respond for this time is left out."""
GRACE_S = 0.2
"""After this time without a response, a frame is left out if it is not visible."""
ENGINE = "hermes-marks"
ROLE = "marquee"
"""The role, which pages hardly use, of marked elements that have none."""
_MARKED_LINE = re.compile(rf"^( *- '?){ROLE}\b(.*? \[ref=\w+\])(?: \[cursor=pointer\])?", re.MULTILINE)
_ELEMENTS = """(function elements(root) {
    return [...root.querySelectorAll('*')].flatMap(e => e.shadowRoot ? [e, ...elements(e.shadowRoot)] : e);
})(document)"""
ENGINE_SCRIPT = f"""(() => {{
    const generic = 'a,abbr,b,bdi,bdo,big,center,cite,data,div,font,i,kbd,label,nobr,pre,q,samp,small,span,tt,u,var,' +
        'section:not([aria-label],[aria-labelledby])';
    const isGeneric = e => (e.matches(generic) || e.localName.includes('-')) && !e.hasAttribute('role');
    let clickable, changed = [];
    const change = (e, name, value) => {{
        e[name] = value;
        changed.push([e, name]);
    }};
    const watchStyles = () => {{
        const styleOf = window.getComputedStyle.bind(window);
        const get = (style, key) => key === 'cursor' ? 'pointer'
            : typeof style[key] === 'function' ? style[key].bind(style) : style[key];
        window.getComputedStyle = (e, pseudo) => {{
            const style = styleOf(e, pseudo);
            return !pseudo && clickable.has(e) ? new Proxy(style, {{ get }}) : style;
        }};
    }};
    const queryAll = (_, places) => {{
        const marks = JSON.parse(places), all = marks.flat().length ? {_ELEMENTS} : [];
        const [clicks, frames] = marks.map(places => places.map(place => all[place]).filter(Boolean));
        if (!clickable) watchStyles();
        clickable = new WeakSet(clicks);
        changed.splice(0).forEach(([e, name]) => delete e[name]);
        const attribute = Element.prototype.getAttribute;
        for (const e of clicks.filter(isGeneric))
            change(e, 'getAttribute', name => name === 'role' ? '{ROLE}' : attribute.call(e, name));
        for (const e of frames) change(e, 'getBoundingClientRect', () => new DOMRect());
        return [document.body ?? document.documentElement];
    }};
    return {{ queryAll, query: (root, places) => queryAll(root, places)[0] }};
}})()"""
"""A selector that sets the marks of a document and matches its body.

Playwright's snapshot has a reference for an element with `cursor: pointer`, unless it has no role and is merged with
another element. It does not open a frame of no size.
"""
_FIND = f"""(() => {{
    if (document.getElementsByTagName('*').length > {MAX_ELEMENTS}) return [];
    const events = ['click', 'mousedown', 'mouseup', 'pointerdown', 'pointerup'];
    const native = 'a[href],area[href],button,input:not([type=hidden]),select,textarea,summary,option';
    const other = 'html,body,head,head *,script,style,template,iframe,frame,br';
    const listeners = typeof getEventListeners === 'function' ? getEventListeners : () => ({{}});
    const isPointer = e => e && getComputedStyle(e).cursor === 'pointer';
    const isHidden = e => {{
        const {{ width, height }} = e.getBoundingClientRect();
        return width <= 1 || height <= 1 || !e.checkVisibility({{ opacityProperty: true, visibilityProperty: true }});
    }};
    const isOwn = e => events.some(name => e['on' + name]) || (e.hasAttribute('tabindex') && e.tabIndex >= 0) ||
        (e.hasAttribute('contenteditable') && e.isContentEditable) ||
        (e.localName === 'label' && e.control && isHidden(e.control));
    const listens = e => {{ const on = listeners(e); return events.some(name => on[name]); }};
    const all = {_ELEMENTS}, places = [];
    let next, nextMarked;
    for (let place = all.length - 1; place >= 0; place--) {{
        const e = all[place];
        if (e.matches(native)) next = e;
        else if (!e.matches(other) && ((isPointer(e) && !isPointer(e.parentElement)) ||
            (isOwn(e) && !e.contains(nextMarked ?? null)) || (listens(e) && !e.contains(next ?? null))) &&
            !e.parentElement?.closest(native)) {{
            next = nextMarked = e;
            places.push(place);
        }}
    }}
    return places;
}})()"""
"""The places of the elements that can be clicked and have no role of their own.

An element that only listens is left out if another one in it can be clicked: it may listen for all of them.
"""
_PLACE = f"""e => [
    {_ELEMENTS}.indexOf(e),
    e.hasAttribute('srcdoc') ? 'about:srcdoc' : e.src,
    e.checkVisibility() && e.offsetWidth > 0 && e.offsetHeight > 0,
]"""
"""The place, URL and visibility of the element of a frame."""


@dataclass
class Marks:
    """The places of marked elements among all elements of a document."""

    clickable: list[int] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)
    """The places of frames that do not respond."""
    silent_urls: list[str] = field(default_factory=list)

    @property
    def selector(self) -> str:
        """The selector that sets these marks."""
        return f"{ENGINE}={json.dumps([self.clickable, self.silent])}"


def show_marks(tree: str) -> str:
    """Return a tree in which the marked elements have their usual role and are shown as clickable."""
    return _MARKED_LINE.sub(r"\1generic\2 [cursor=pointer]", tree)


async def mark_page(page: Page, session: CDPSession | None) -> Marks:
    """Mark the frames of a page. Return the marks of its own document, with the URLs of all frames that are left out.

    Event listeners are seen only by a session, which is one with the page.
    """
    main, frames = page.main_frame, page.frames[1:]
    clickable, answers = await asyncio.gather(_find_clickable(main, session), asyncio.gather(*map(_mark_frame, frames)))
    marks = {main: Marks(clickable)}
    marks.update((frame, answer) for frame, answer in zip(frames, answers, strict=True) if answer is not None)
    for frame in frames:
        parent = frame.parent_frame
        if frame in marks or parent not in marks or (element := await _find_element(frame)) is None:
            continue
        place, url, _ = element
        marks[main].silent_urls.append(url or frame.url or "a frame")
        marks[parent].silent.append(place)
        if parent is not main:
            await _set_marks(parent, marks[parent])
    return marks[main]


async def _mark_frame(frame: Frame) -> Marks | None:
    """Mark a frame, and return its marks, or None if it is visible and does not respond."""
    marks = Marks()

    async def mark() -> None:
        marks.clickable = await _find_clickable(frame)
        await _set_marks(frame, marks)

    with anyio.move_on_after(FRAME_S):
        marking = asyncio.ensure_future(mark())
        try:
            await asyncio.wait({marking}, timeout=GRACE_S)
            if marking.done() or not (element := await _find_element(frame)) or not element[2]:
                return marks
            await marking
            return marks
        finally:
            marking.cancel()
    return None


async def _set_marks(frame: Frame, marks: Marks) -> None:
    from playwright.async_api import Error

    with contextlib.suppress(Error):  # the frame is gone
        await frame.locator(marks.selector).count()


async def _find_element(frame: Frame) -> tuple[int, str, bool] | None:
    """Return the place, URL and visibility of the element of a frame, or None if it is gone."""
    from playwright.async_api import Error

    try:
        place, url, is_visible = await (await frame.frame_element()).evaluate(_PLACE)
    except (Error, TypeError, ValueError):
        return None
    return place, str(url), bool(is_visible)


async def _find_clickable(frame: Frame, session: CDPSession | None = None) -> list[int]:
    """Return the places of the elements of a frame that can be clicked."""
    from playwright.async_api import Error

    command = {"expression": _FIND, "includeCommandLineAPI": True, "returnByValue": True}
    places: object = None
    with contextlib.suppress(Error), anyio.move_on_after(FRAME_S):  # the page may be gone
        if session is None:
            places = await frame.evaluate(_FIND)
        else:
            places = (await session.send("Runtime.evaluate", command))["result"].get("value")
    return places if isinstance(places, list) and all(type(place) is int for place in places) else []
