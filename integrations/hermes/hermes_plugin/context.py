"""What hermes-agent gives a plugin, as far as this one uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class PluginContext(Protocol):
    """The argument of `register`."""

    def register_hook(self, hook_name: str, callback: Callable[..., None]) -> None:
        """Call `callback` at an event."""

    def register_tool(
        self, name: str, toolset: str, schema: object, handler: Callable[..., str], *, override: bool = False
    ) -> None:
        """Add a tool, or replace one."""
