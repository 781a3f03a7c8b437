"""The tools of a Toolbox and their schemas, chosen by the names of toolsets and tools."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hermes_exec.errors import ConfigError
from hermes_exec.tools.catalog.host_tools import HostTool
from hermes_exec.tools.catalog.schemas import FILE_ADVICE_NEEDS, JsonObject, remove_file_advice, schemas
from hermes_exec.tools.catalog.toolsets import SHIPPED, require_tool, select, unavailability_reason, usable_tools
from hermes_exec.tools.code.stubs import CALLABLE, add_functions

DEFAULT_TOOLSETS = ("terminal", "file")
logger = logging.getLogger("hermes_exec.tools")


class ToolChoice(NamedTuple):
    """The tools of a Toolbox.

    `schemas` are the function schemas by name, `host` the host tools among them, `code_tools` the schemas of the tools
    that code may call, and `unavailable` the tools of the toolsets that this package does not have.
    """

    schemas: dict[str, JsonObject]
    host: Mapping[str, HostTool]
    code_tools: Mapping[str, JsonObject]
    unavailable: tuple[str, ...]


def schemas_for(
    toolsets: Iterable[str] | None = None, *, tools: Iterable[str | HostTool] | None = None
) -> list[JsonObject]:
    """Return the function schemas that a Toolbox with these arguments has, without a slot.

    Raises:
        ConfigError: As `Toolbox` does.
    """
    return list(choose_tools(toolsets, tools).schemas.values())


def choose_tools(toolsets: Iterable[str] | None, tools: Iterable[str | HostTool] | None) -> ToolChoice:
    """Return the tools that a Toolbox with these arguments has.

    Raises:
        ConfigError: If a name is unknown, if this package does not have a tool of `tools`, or if no tool remains.
    """
    names, host, unavailable = _choose_names(toolsets, tools)
    built_in = schemas()
    chosen = {name: built_in[name] for name in names} | {tool.name: tool.schema for tool in host.values()}
    if not chosen.keys() >= FILE_ADVICE_NEEDS:
        for schema in chosen.values():
            remove_file_advice(schema)
    code_tools = {name: schema for name, schema in chosen.items() if name in CALLABLE or name in host}
    if "execute_code" in names:
        add_functions(chosen["execute_code"], code_tools)
    return ToolChoice(chosen, host, code_tools, unavailable)


def _choose_names(
    toolsets: Iterable[str] | None, tools: Iterable[str | HostTool] | None
) -> tuple[tuple[str, ...], dict[str, HostTool], tuple[str, ...]]:
    if isinstance(toolsets, str) or isinstance(tools, str):
        raise ConfigError("toolsets and tools are lists of names, not one name")
    entries = list(tools or ())
    toolset_names = list(toolsets) if toolsets is not None else [] if tools is not None else list(DEFAULT_TOOLSETS)
    selection = select(toolset_names)
    host = {tool.name: tool for tool in entries if isinstance(tool, HostTool)}
    single = [tool for tool in entries if isinstance(tool, str)]
    for name in single:
        require_tool(name)
    clash = [name for name in host if name in SHIPPED]
    if clash:
        raise ConfigError(
            f"the host-side tool {clash[0]!r} has the name of a tool that runs in the slot; give it another name"
        )
    unavailable = tuple(name for name in selection.unavailable if name not in host)
    names = tuple(name for name in usable_tools() if name in selection.tools or name in single)
    if not names and not host:
        detail = "; ".join(f"{name}: {unavailability_reason(name)}" for name in unavailable[:3])
        raise ConfigError(
            f"no tool is left of toolsets {toolset_names}: {detail or 'they are empty'}. Toolsets with tools here: "
            "terminal, file"
        )
    if unavailable:
        logger.info("left out, not part of this package: %s", ", ".join(unavailable))
    return names, host, unavailable
