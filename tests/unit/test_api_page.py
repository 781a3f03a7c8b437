"""The page of the API has every public name."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"


@pytest.mark.parametrize(
    "package",
    [
        "hermes_exec",
        "hermes_exec.tools",
        "hermes_exec.tracing",
        "hermes_agent",
        "hermes_agent.tokens",
        "hermes_batch",
        "hermes_atropos",
        "hermes_mcp",
    ],
)
def test_every_public_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    listed = set(PAGE.read_text("utf-8").replace("::: ", "").split())
    missing = [
        name
        for name in module.__all__
        if f"{package}.{name}" not in listed
        and getattr(inspect.getmodule(getattr(module, name)), "__name__", "") != "hermes_exec.errors"
    ]
    assert missing == []
