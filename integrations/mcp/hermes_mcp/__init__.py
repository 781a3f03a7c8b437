"""An MCP server whose tools work in slots: `hermes-exec mcp`, and `SlotServer` for servers of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec._lazy import lazy_attributes

if TYPE_CHECKING:
    from hermes_mcp.server import SlotServer

__all__ = ["SlotServer"]
SUPPORTED = "mcp>=2.3,<3"

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(__name__, __all__, where=("server",), requires=SUPPORTED)
