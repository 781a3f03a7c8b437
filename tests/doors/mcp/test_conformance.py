"""The conformance suite of MCP: all scenarios that apply to a server without prompts, resources and sampling."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.doors import DoorClosed, prepare_node

PACKAGES = ("@modelcontextprotocol/conformance@0.1.16", "node@22")
"""The suite, and the version of Node.js that it needs."""
SCENARIOS = (
    "server-initialize",
    "ping",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-error",
    "json-schema-2020-12",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
)


@pytest.fixture(scope="module")
def suite() -> list[str]:
    """The command of the suite."""
    try:
        programs = prepare_node("mcp-conformance", PACKAGES) / "node_modules" / ".bin"
    except DoorClosed as reason:
        pytest.skip(str(reason))
    return [str(programs / "node"), str(programs / "conformance")]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The URL of the test server."""
    command = [sys.executable, str(Path(__file__).with_name("conformance_server.py"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()
        assert server.wait(60) == 130


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_passes(suite: list[str], url: str, scenario: str, tmp_path: Path) -> None:
    command = [*suite, "server", "--url", url, "--scenario", scenario]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert ", 0 failed, 0 warnings" in ended.stdout, ended.stdout
