"""Schemas of a choice of tools, without a slot."""

from __future__ import annotations

from typing import Any

import pytest

from hermes_exec.errors import ConfigError
from hermes_exec.tools import schemas_for, tool


@tool
def lookup(word: str) -> str:
    """Look a word up."""
    return word


def described(schemas: list[dict[str, object]]) -> dict[str, str]:
    functions: list[Any] = [schema["function"] for schema in schemas]
    return {function["name"]: function["description"] for function in functions}


def test_schemas_for_names_the_tools_of_toolsets() -> None:
    assert list(described(schemas_for(["terminal"]))) == ["terminal", "process"]
    assert list(described(schemas_for())) == ["terminal", "process", "read_file", "write_file", "patch", "search_files"]
    assert list(described(schemas_for(tools=[lookup]))) == ["lookup"]


def test_schemas_for_lists_the_functions_of_code() -> None:
    text = described(schemas_for(["code_execution", "terminal"], tools=[lookup]))["execute_code"]
    assert text.endswith(
        "Functions: lookup(word); terminal(command, background=None, timeout=None, workdir=None, pty=None, "
        "notify_on_complete=None, watch_patterns=None)."
    )


def test_schemas_for_gives_file_advice_only_with_the_file_tools() -> None:
    assert "Use read_file" in described(schemas_for(["terminal", "file"]))["terminal"]
    assert "Use read_file" not in described(schemas_for(["terminal"]))["terminal"]


def test_schemas_for_refuses_unknown_toolsets() -> None:
    with pytest.raises(ConfigError, match="did you mean 'terminal'"):
        schemas_for(["terminall"])
