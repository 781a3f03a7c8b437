"""The function behind each tool name."""

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


class BuiltInTool(NamedTuple):
    """A built-in tool.

    `clamped` are number fields that are moved into their range instead of being refused; `reads_only` is True if the
    tool changes nothing.
    """

    run: Tool
    clamped: frozenset[str] = frozenset()
    reads_only: bool = False


REGISTRY: Mapping[str, BuiltInTool] = MappingProxyType(
    {
        "terminal": BuiltInTool(terminal),
        "process": BuiltInTool(process),
        "read_file": BuiltInTool(read_file, frozenset({"offset", "limit"}), reads_only=True),
        "write_file": BuiltInTool(write_file),
        "patch": BuiltInTool(patch),
        "search_files": BuiltInTool(search_files, frozenset({"limit", "offset", "context"}), reads_only=True),
        "execute_code": BuiltInTool(execute_code),
        "browser_navigate": BuiltInTool(browser.navigate),
        "browser_snapshot": BuiltInTool(browser.snapshot, reads_only=True),
        "browser_click": BuiltInTool(browser.click),
        "browser_type": BuiltInTool(browser.type_text),
        "browser_scroll": BuiltInTool(browser.scroll),
        "browser_back": BuiltInTool(browser.back),
        "browser_press": BuiltInTool(browser.press),
        "browser_get_images": BuiltInTool(browser.get_images, reads_only=True),
        "browser_vision": BuiltInTool(browser.vision),
        "browser_console": BuiltInTool(browser.console),
        "browser_cdp": BuiltInTool(browser.cdp),
        "browser_dialog": BuiltInTool(browser.dialog),
        "browser_close": BuiltInTool(browser.close),
    }
)
