"""hermes-agent on hermes-exec: its commands, files and scripts run in slots (`terminal.backend: hermes_exec`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes_plugin.context import PluginContext

__all__ = ["register"]
SUPPORTED = "hermes-agent>=0.19,<0.20"
"""The release without providers of terminal environments."""


def register(ctx: PluginContext) -> None:
    """Add the backend `hermes_exec` to hermes-agent, which calls this when it loads the plugin `hermes-exec`.

    Mistakes are printed too: hermes-agent writes them only to a log, and goes on without the tools.

    Raises:
        ConfigError: If this version of hermes-agent is not supported.
        PermissionError: If the option `tools` is set, and config.yaml does not allow it.
    """
    from hermes_plugin.availability import find_mistake, show

    try:
        _add_backend(ctx)
        if mistake := find_mistake():
            show(mistake)
            return
        from hermes_plugin.options import read_options

        if read_options().tools:
            from hermes_plugin.slot_tools import replace_tools

            replace_tools(ctx)
    except Exception as error:
        show(str(error))
        raise


def _add_backend(ctx: PluginContext) -> None:
    if add_provider := getattr(ctx, "register_terminal_environment_provider", None):
        from hermes_plugin.provider import SlotProvider

        add_provider(SlotProvider())
    else:
        from hermes_exec.requirements import require_version

        require_version(__name__, SUPPORTED)
        from hermes_plugin.release_0_19 import add_backend

        add_backend(ctx)
