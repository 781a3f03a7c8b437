"""The environment of the target: its version, and this checkout with its entry points."""

from __future__ import annotations

from importlib.metadata import entry_points, version
from pathlib import Path

import hermes_exec
from tests.support.doors import ROOT


def test_environment_has_the_pinned_target_and_this_checkout() -> None:
    assert version("mcp") == "2.3.0"
    assert Path(hermes_exec.__file__).is_relative_to(ROOT)
    assert version("hermes-exec")
    assert "batch" in entry_points(group="hermes_exec.commands").names
