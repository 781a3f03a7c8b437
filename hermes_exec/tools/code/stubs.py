"""The module that programs import as `hermes_tools`: a client of the toolbox's socket and a function for each tool."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

CALLABLE = frozenset({"web_search", "web_extract", "read_file", "write_file", "search_files", "patch", "terminal"})
"""The tools that a program may call if its toolbox has them, in addition to host tools declared with @tool."""


@cache
def program_text(name: str) -> str:
    """Return the text of a program that runs in the slot."""
    return (resources.files("hermes_exec.tools.code") / "programs" / name).read_text("utf-8")


def signature(name: str, schema: Mapping[str, Any]) -> str:
    """Return the signature of a tool's function, such as `terminal(command, timeout=None)`."""
    return f"{name}({', '.join(_parameters(schema))})"


def module_text(tools: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of hermes_tools.py for these tools (name to schema)."""
    return program_text("hermes_tools.py") + "".join(
        _function_text(name, schema) for name, schema in sorted(tools.items())
    )


def _parameters(schema: Mapping[str, Any]) -> list[str]:
    parameters = schema["function"]["parameters"]
    required = [name for name in parameters.get("required", ()) if _is_usable_name(name)]
    optional = parameters.get("properties", {}).keys() - {*required, "cross_profile"}
    others = [name for name in parameters.get("properties", {}) if _is_usable_name(name) and name in optional]
    return [*required, *(f"{name}=None" for name in others)]


def _function_text(name: str, schema: Mapping[str, Any]) -> str:
    if not _is_usable_name(name):
        return ""
    description = str(schema["function"].get("description", ""))
    words = [parameter.partition("=")[0] for parameter in _parameters(schema)]
    pairs = ", ".join(f"{word!r}: {word}" for word in words)
    return (
        f"\n\ndef {signature(name, schema)}:\n    {description!r}\n    given = {{{pairs}}}\n"
        f"    return _call({name!r}, {{word: value for word, value in given.items() if value is not None}})\n"
    )


def _is_usable_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def add_functions(schema: dict[str, Any], tools: Mapping[str, Mapping[str, Any]]) -> None:
    """Add the available functions to the description of execute_code."""
    signatures = "; ".join(signature(name, tools[name]) for name in sorted(tools)) or "none"
    schema["function"]["description"] += f" Functions: {signatures}."
