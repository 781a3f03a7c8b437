"""Wrong options and missing things: the message and its remedy, and nothing left behind."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.doors.mcp.conftest import PROGRAM, Mode, StdioClient, text_of


@pytest.fixture
def mode() -> Mode:
    """One protocol era: nothing here depends on it."""
    return "auto"


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--toolsets", "terminall"], 2, "did you mean 'terminal'"),
        pytest.param(["--toolsets", "web"], 2, "no tool is left", marks=pytest.mark.whole),
        (["--dir", "/nowhere"], 2, "give an existing one with --dir"),
        (["-b", "dockr"], 2, "docker"),
        pytest.param(["-b", "docker"], 2, "image", marks=pytest.mark.whole),
        pytest.param(["-o", "min_isolaton=uid"], 2, "min_isolation", marks=pytest.mark.whole),
        pytest.param(["--tool-option", "x=1"], 2, "ToolOptions has no 'x'", marks=pytest.mark.whole),
        pytest.param(["--http", "8000"], 2, "is not HOST:PORT", marks=pytest.mark.whole),
        (["--http", "0.0.0.0:8000"], 2, "set HERMES_MCP_TOKEN"),
        (["--http", "example.invalid:8000", "--token", "x"], 2, "choose another address"),
    ],
)
def test_wrong_options_are_reported_before_anything_starts(options: list[str], code: int, message: str) -> None:
    ended = subprocess.run([*PROGRAM, *options], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_address_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = subprocess.run([*PROGRAM, "--http", address], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert f"cannot listen on {address}: Address already in use; choose another address" in ended.stderr


def test_backend_that_is_not_there_is_reported() -> None:
    env = os.environ | {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
    command = [*PROGRAM, "-b", "docker", "-i", "debian", "--http", "127.0.0.1:0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert ended.returncode == 3
    assert ended.stderr.startswith("BackendUnavailable: ")
    assert "/nowhere/docker.sock" in ended.stderr


async def test_backend_that_is_not_there_is_an_error_of_each_call(stdio_client: StdioClient) -> None:
    options = ("-b", "singularity", "-i", "/nowhere/image.sif", "-o", "binary=/nowhere/apptainer")
    async with stdio_client(*options) as client:
        for _ in range(2):
            result = await client.call_tool("terminal", {"command": "true"})
            assert result.is_error
            assert text_of(result).startswith("BackendUnavailable: ")


def test_removed_working_directory_is_reported(tmp_path: Path) -> None:
    command = ["sh", "-c", 'rmdir "$1"; shift; exec "$@"', "sh", str(tmp_path), *PROGRAM, "--dir", "."]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr == "ConfigError: the project .: No such file or directory; give an existing one with --dir\n"


@pytest.mark.docker
async def test_missing_image_is_an_error_of_each_call(
    stdio_client: StdioClient, docker_image: Callable[[str], str]
) -> None:
    docker_image("debian")  # there is an engine
    options = ("-b", "docker", "-i", "hermes-exec-test/no-such-image", "-o", "pull_policy=never")
    async with stdio_client(*options) as client:
        for _ in range(2):
            result = await client.call_tool("terminal", {"command": "true"})
            assert result.is_error
            assert text_of(result).startswith(
                "ImageError: the image 'hermes-exec-test/no-such-image' is not on this engine"
            )


def test_unsupported_version_of_mcp_is_reported(tmp_path: Path) -> None:
    info = tmp_path / "mcp-1.26.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: mcp\nVersion: 1.26.0\n")
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"}
    ended = subprocess.run(PROGRAM, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=env)
    assert ended.returncode == 2
    assert "hermes-exec mcp needs mcp>=2.3,<3, installed: 1.26.0. Run: pip install 'mcp>=2.3,<3'" in ended.stderr
