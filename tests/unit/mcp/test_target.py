"""The adapter without its target: importing works, using reports what to install."""

from __future__ import annotations

import pytest

import hermes_mcp
from hermes_exec.errors import ConfigError


def test_server_without_mcp_reports_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"hermes_mcp needs mcp.*pip install 'mcp"):
        _ = hermes_mcp.SlotServer
