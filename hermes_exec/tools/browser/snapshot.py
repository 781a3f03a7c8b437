"""The accessibility tree of a page as text: one element per line, with references for the other tools.

The tree and its references (`[ref=e5]`, in frames `[ref=f1e5]`) come from Playwright's `Page.aria_snapshot(mode="ai")`.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import json
import re
from collections.abc import Collection
from typing import TYPE_CHECKING
from weakref import WeakSet

from hermes_exec.errors import ExecError
from hermes_exec.tools.browser.downloads import MAX_URL_CHARS
from hermes_exec.tools.browser.marks import MAX_ELEMENTS, Marks, mark_page, show_marks
from hermes_exec.tools.call.budget import result_path
from hermes_exec.tools.call.failure import ToolFailure

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Page

    from hermes_exec.slot.slot import Slot

SNAPSHOT_S = 45.0
LIMIT_CHARS = 15_000
MAX_FILE_CHARS = 2_000_000
WHOLE_NOTE = "(most of it; the page is now:)"
_MARKED_PAGES: WeakSet[Page] = WeakSet()
"""Pages that may have marks from an earlier snapshot."""
_LINE = re.compile(r"^( *)- ('?)([a-z]+)?(.*)$")
_REF = re.compile(r" \[ref=[a-z0-9]+\]")
_PLAIN_ROLES = frozenset(
    {
        "blockquote",
        "caption",
        "code",
        "definition",
        "deletion",
        "emphasis",
        "group",
        "heading",
        "insertion",
        "list",
        "listitem",
        "paragraph",
        "row",
        "rowgroup",
        "separator",
        "strong",
        "subscript",
        "superscript",
        "term",
        "time",
    }
)
"""Roles that are not clickable. Without their references a page is a third shorter."""


async def top_selector(page: Page) -> str:
    """Return the selector of the root of a snapshot: the body, the document element without one (an image), or "".

    Raises:
        ToolFailure: If the page is too large.
    """
    top, count = await page.evaluate(
        "[document.querySelector('body') ? 'body' : document.documentElement ? ':root' : '',"
        " document.getElementsByTagName('*').length]"
    )
    if count > MAX_ELEMENTS:
        message = (
            f"The page has {count:,} elements, too many for a snapshot: read the parts that you need with "
            "browser_console (document.querySelector(...).innerText), or open another page."
        )
        raise ToolFailure("too_large", message, success=False, not_loaded=page.url[:MAX_URL_CHARS])
    return str(top)


async def find_marks(page: Page, session: CDPSession | None) -> tuple[str, Marks]:
    """Return the selector of the root of a snapshot, and the marks that it needs; `session` is one with the page.

    Raises:
        ToolFailure: If the page is too large.
    """
    return await asyncio.gather(top_selector(page), mark_page(page, session))


async def read_tree(page: Page, top: str, marks: Marks) -> str:
    """Return the tree of a page. A document without a root has no elements."""
    if not top:
        return ""
    needs_marks = top != "body" or marks.clickable or marks.silent or page in _MARKED_PAGES
    if needs_marks:
        _MARKED_PAGES.add(page)
    root = page.locator(marks.selector) if needs_marks else page
    return show_marks(await root.aria_snapshot(mode="ai", timeout=SNAPSHOT_S * 1000))


def element_count(text: str) -> int:
    """Return the number of elements in a tree that have a reference."""
    return len(_REF.findall(text))


def compact(tree: str) -> str:
    """Return the tree without containers that have no content of their own, and without references of plain text."""
    lines: list[str] = []
    dropped: list[int] = []  # indentations of the omitted containers around the line
    for line in tree.splitlines():
        match = _LINE.match(line)
        if match is None:
            lines.append(line)
            continue
        indent, role, rest = len(match[1]), match[3] or "", match[4]
        while dropped and dropped[-1] >= indent:
            dropped.pop()
        clickable = "[cursor=pointer]" in rest
        indentation = " " * (indent - 2 * len(dropped))
        if role == "generic" and not clickable:
            bare = _REF.sub("", rest).replace(" [active]", "")
            if bare in ("", ":"):
                dropped.append(indent)
                continue
            if bare.startswith(": "):
                lines.append(f"{indentation}- {match[2]}text{bare}")
                continue
        if role in _PLAIN_ROLES and not clickable:
            rest = _REF.sub("", rest)
        lines.append(f"{indentation}- {match[2]}{role}{rest}")
    return "\n".join(lines)


def changes(before: str, after: str) -> str:
    """Return the removed (-) and added (+) lines with their indentation, or the whole of `after` if that is shorter.

    Empty if nothing changed.
    """
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    changed = "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))
    return changed if len(changed) <= len(after) else f"{WHOLE_NOTE}\n{after}"


async def fit_snapshot(slot: Slot, text: str) -> str:
    """Return the text within the limit: cut at the end of a line, with the whole text in a file of the slot."""
    if len(text) <= LIMIT_CHARS:
        return text
    head = text[:LIMIT_CHARS].rpartition("\n")[0] or text[:LIMIT_CHARS]
    data = text.encode("utf-8", "replace")
    path = result_path(slot, f"browser-snapshot-{hashlib.sha256(data).hexdigest()[:10]}.txt")
    omission = f"{len(text) - len(head):,} of {len(text):,} characters are not shown"
    try:
        await slot.files.write_bytes(path, text[:MAX_FILE_CHARS].encode("utf-8", "replace"))
    except OSError as error:
        if isinstance(error, ExecError):
            raise
        return f"{head}\n... [{omission}]"
    line = head.count("\n") + 2
    return f"{head}\n... [{omission}; the full tree: read_file(path={path!r}, offset={line})]"


def mask_secrets(tree: str, secrets: Collection[str]) -> str:
    """Return the tree of a page without secret values of text fields."""
    values = [f": {text}" for secret in secrets for text in (secret, json.dumps(secret, ensure_ascii=False))]
    lines = tree.split("\n") if values else [tree]
    for number, line in enumerate(lines):
        if line.lstrip().startswith("- textbox"):
            lines[number] = next((f"{line.removesuffix(v)}: ***" for v in values if line.endswith(v)), line)
    return "\n".join(lines)
