"""The adapter without its target: importing works, using reports what to install."""

from __future__ import annotations

import pytest

from hermes_exec import SandboxPool
from hermes_exec.errors import ConfigError
from hermes_mcp import SlotServer


def test_server_without_mcp_reports_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"not installed; run: pip install 'hermes-exec\[mcp\]'"):
        SlotServer(SandboxPool("local"))
