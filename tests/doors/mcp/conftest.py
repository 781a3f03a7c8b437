"""The program `hermes-exec mcp` with clients of the package mcp, over stdio and over HTTP, in both protocol eras."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters

Mode = Literal["auto", "legacy"]
PROGRAM = [sys.executable, "-m", "hermes_exec.cli.main", "mcp"]
StdioClient = Callable[..., Client]
HttpServer = Callable[..., str]


@pytest.fixture(params=["auto", "legacy"])
def mode(request: pytest.FixtureRequest) -> Mode:
    """The newest protocol, and the newest one with sessions."""
    return "auto" if request.param == "auto" else "legacy"


@pytest.fixture
def stdio_client(mode: Mode) -> StdioClient:
    """A function from options of the program to a client of it over stdio."""
    return lambda *options: program_client(mode, *options)


def program_client(mode: Mode, *options: str) -> Client:
    """Return a client that starts the program with these options."""
    program = StdioServerParameters(command=PROGRAM[0], args=[*PROGRAM[1:], *options], env=dict(os.environ))
    return Client(program, mode=mode)


@pytest.fixture(scope="module")
def http_server() -> Iterator[HttpServer]:
    """A function that starts the program with more options and variables, once for a module, and returns its URL."""
    urls: dict[object, str] = {}
    with ExitStack() as stack:

        def start(*options: str, **env: str) -> str:
            key = (options, *env.items())
            if key not in urls:
                urls[key] = stack.enter_context(running_server(options, env))
            return urls[key]

        yield start


@contextmanager
def running_server(options: tuple[str, ...], env: dict[str, str]) -> Iterator[str]:
    """Run the program over HTTP on a free port of loopback, and yield its URL. It ends without an error."""
    command = [*PROGRAM, "--http", "127.0.0.1:0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | env) as server:
        assert server.stderr is not None
        try:
            line = server.stderr.readline()
            found = re.search(r"http://\S+", line)
            assert found is not None, line + server.stderr.read()
            yield found[0]
        finally:
            server.terminate()
            errors = server.communicate(timeout=60)[1]
    assert server.returncode == 130, errors
    assert "Traceback" not in errors


def text_of(result: types.CallToolResult, index: int = 0) -> str:
    """Return a text of a result."""
    content = result.content[index]
    assert isinstance(content, types.TextContent)
    return str(content.text)
