"""The function behind each tool name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from hermes_exec.slot.run import OnOutput
from hermes_exec.tools.browser import extra_tools
from hermes_exec.tools.browser import tools as browser
from hermes_exec.tools.call.results import CallOutcome
from hermes_exec.tools.code.execute_code import execute_code
from hermes_exec.tools.files.read_file import read_file
from hermes_exec.tools.files.search_files import search_files
from hermes_exec.tools.files.write_file import write_file
from hermes_exec.tools.patch.patch import patch
from hermes_exec.tools.state.tool_state import LiveTool, Tool, ToolState
from hermes_exec.tools.terminal.process import process
from hermes_exec.tools.terminal.terminal import terminal


class BuiltInTool(NamedTuple):
    """A built-in tool.

    `clamped` are number fields that are moved into their range instead of being refused; `reads_only` is True if the
    tool changes nothing.
    """

    run: LiveTool
    clamped: frozenset[str] = frozenset()
    reads_only: bool = False


def _silent(tool: Tool, clamped: frozenset[str] = frozenset(), *, reads_only: bool = False) -> BuiltInTool:
    """Return a tool that has no output while it runs."""

    async def run(state: ToolState, arguments: dict[str, Any], on_output: OnOutput | None) -> CallOutcome:  # noqa: ARG001
        return await tool(state, arguments)

    return BuiltInTool(run, clamped, reads_only)


REGISTRY: Mapping[str, BuiltInTool] = MappingProxyType(
    {
        "terminal": BuiltInTool(terminal),
        "process": BuiltInTool(process),
        "read_file": _silent(read_file, frozenset({"offset", "limit"}), reads_only=True),
        "write_file": _silent(write_file),
        "patch": _silent(patch),
        "search_files": _silent(search_files, frozenset({"limit", "offset", "context"}), reads_only=True),
        "execute_code": BuiltInTool(execute_code),
        "browser_navigate": _silent(browser.navigate),
        "browser_snapshot": _silent(browser.snapshot, reads_only=True),
        "browser_click": _silent(browser.click),
        "browser_type": _silent(browser.type_text),
        "browser_scroll": _silent(browser.scroll),
        "browser_back": _silent(browser.back),
        "browser_press": _silent(browser.press),
        "browser_get_images": _silent(browser.get_images, reads_only=True),
        "browser_vision": _silent(browser.vision),
        "browser_console": _silent(browser.console),
        "browser_cdp": _silent(browser.cdp),
        "browser_dialog": _silent(browser.dialog),
        "browser_close": _silent(browser.close),
        "browser_wait_for": _silent(extra_tools.wait_for, frozenset({"time"})),
        "browser_tabs": _silent(extra_tools.tabs),
        "browser_hover": _silent(extra_tools.hover),
        "browser_drag": _silent(extra_tools.drag),
        "browser_network_requests": _silent(extra_tools.network_requests, reads_only=True),
        "browser_storage_state": _silent(extra_tools.storage_state),
        "browser_set_storage_state": _silent(extra_tools.set_storage_state),
    }
)
