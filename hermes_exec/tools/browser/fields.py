"""Input of text, choices, dates and files into fields of pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hermes_exec.tools.browser.sessions import element_session
from hermes_exec.tools.call.failure import ToolFailure

if TYPE_CHECKING:
    from playwright.async_api import ElementHandle, Locator

    from hermes_exec.tools.browser.browser import RunningBrowser
    from hermes_exec.tools.state.tool_state import ToolState

DESCRIBE_FIELD = """e => {
    const kind = e.tagName === 'INPUT' ? e.type : e.tagName.toLowerCase();
    const pressed = ['button', 'checkbox', 'image', 'radio', 'reset', 'submit'];
    const field = e.tagName === 'INPUT' ? !pressed.includes(kind) : ['select', 'textarea'].includes(kind);
    const options = [...(kind === 'select' ? e.options : [])];
    return {
        kind: field || e.isContentEditable ? kind : 'other',
        several: !!e.multiple,
        options: options.map(o => [o.label, o.disabled || o.matches('optgroup[disabled] *')]),
    }; }"""
"""The type of field of an element (`other` if it accepts no text), whether it accepts several values, and its options.

Each option has its label and whether it is disabled.
"""
FORMATS = {
    "date": "YYYY-MM-DD",
    "time": "HH:MM",
    "datetime-local": "YYYY-MM-DDTHH:MM",
    "month": "YYYY-MM",
    "week": "YYYY-Www",
}
"""The formats of fields that drop any other input."""


_MARK = """(e, mark) => {
    e.setAttribute(mark, e.isConnected ? '' : 'alone');
    if (!e.isConnected) e.ownerDocument.documentElement.append(e); }"""
"""Mark the element, and add it to its document if a script has left it out, so that DevTools finds it."""
_UNMARK = "(e, mark) => { if (e.getAttribute(mark)) e.remove(); e.removeAttribute(mark); }"


async def fill(running: RunningBrowser, state: ToolState, locator: Locator, text: str, within_s: float) -> None:
    """Replace the text of a field, select options of a list, or set files of the slot for a file field or an open
    chooser.

    Raises Playwright's errors.

    Raises:
        ToolFailure: If the field does not accept the text.
    """
    facts = await locator.evaluate(DESCRIBE_FIELD)
    kind: str = facts["kind"]
    field = await locator.element_handle() if kind == "file" else None
    if kind == "other" and running.tabs.chooser is not None:
        field = running.tabs.chooser.element
    if field is not None:
        await _set_files(running, state, field, text)
        running.tabs.chooser = None
    elif kind == "select":
        options = facts["options"]
        labels = text.splitlines() if facts["several"] else [text]
        choices = [label for label, disabled in options if not disabled]
        for label in labels:
            if label not in choices:
                reason = "is disabled" if any(label == each for each, _ in options) else "is not there"
                missing = f"The option {label!r} {reason}; there are: {', '.join(choices)[:1000]}."
                raise ToolFailure("bad_value", missing, success=False)
        await running.act(lambda: locator.select_option(label=labels, timeout=within_s * 1000))
    else:
        if kind == "password" and text:
            running.passwords.add(text)
        await running.act(lambda: locator.fill(text, timeout=within_s * 1000))
        if kind in FORMATS and text and not await locator.input_value():
            message = f"{text!r} is no {kind}: the field takes {FORMATS[kind]}, and is empty now."
            raise ToolFailure("bad_value", message, success=False)


async def _set_files(running: RunningBrowser, state: ToolState, field: ElementHandle, text: str) -> None:
    """Set the files of a file field: paths in the slot, one per line."""
    paths = [state.resolve(line.strip(), "text") for line in text.splitlines() if line.strip()]
    for path in paths:
        if not await state.slot.files.exists(path):
            raise ToolFailure("not_found", f"There is no file {path} in the slot to upload.", success=False)
        if (await state.slot.files.stat(path)).type != "file":
            raise ToolFailure("bad_value", f"{path} is no file.", success=False)
    if len(paths) > 1 and not await field.evaluate("e => e.multiple"):
        raise ToolFailure("bad_value", "This field takes one file.", success=False)
    mark = "data-hermes-upload"
    await field.evaluate(_MARK, mark)
    session = await element_session(field, running.tabs.page)
    try:
        tree = await session.send("DOM.getDocument", {"depth": -1, "pierce": True})
        (node,) = _find_nodes(mark, tree["root"])
        await session.send("DOM.setFileInputFiles", {"files": paths, "backendNodeId": node})
    finally:
        await field.evaluate(_UNMARK, mark)
        await session.detach()


def _find_nodes(attribute: str, root: dict[str, Any]) -> list[int]:
    """Return the nodes of a document that have an attribute, including those in frames and shadow trees."""
    nodes, stack = [], [root]
    while stack:
        node = stack.pop()
        if attribute in node.get("attributes", ()):
            nodes.append(node["backendNodeId"])
        stack += [*node.get("children", ()), *node.get("shadowRoots", ())]
        stack += [node["contentDocument"]] if "contentDocument" in node else []
    return nodes
