"""Which function stands behind which tool name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from hermes_exec.tools.browser import tools as browser
from hermes_exec.tools.code.execute_code import execute_code
from hermes_exec.tools.files.read_file import read_file
from hermes_exec.tools.files.search_files import search_files
from hermes_exec.tools.files.write_file import write_file
from hermes_exec.tools.patch.patch import patch
from hermes_exec.tools.state.tool_state import Tool
from hermes_exec.tools.terminal.process import process
from hermes_exec.tools.terminal.terminal import terminal


class Entry(NamedTuple):
    """A built-in tool: its function, the number fields that are moved into their range instead of refused, and whether
    it only reads.
    """

    run: Tool
    clamped: frozenset[str] = frozenset()
    reads_only: bool = False


REGISTRY: Mapping[str, Entry] = MappingProxyType(
    {
        "terminal": Entry(terminal),
        "process": Entry(process),
        "read_file": Entry(read_file, frozenset({"offset", "limit"}), reads_only=True),
        "write_file": Entry(write_file),
        "patch": Entry(patch),
        "search_files": Entry(search_files, frozenset({"limit", "offset", "context"}), reads_only=True),
        "execute_code": Entry(execute_code),
        "browser_navigate": Entry(browser.navigate),
        "browser_snapshot": Entry(browser.snapshot, reads_only=True),
        "browser_click": Entry(browser.click),
        "browser_type": Entry(browser.type_text),
        "browser_scroll": Entry(browser.scroll),
        "browser_back": Entry(browser.back),
        "browser_press": Entry(browser.press),
        "browser_get_images": Entry(browser.get_images, reads_only=True),
        "browser_vision": Entry(browser.vision),
        "browser_console": Entry(browser.console),
        "browser_cdp": Entry(browser.cdp),
        "browser_dialog": Entry(browser.dialog),
        "browser_close": Entry(browser.close),
    }
)
