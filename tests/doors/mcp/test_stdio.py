"""Clients over standard input and output that do not read, or end without closing it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.doors.mcp.conftest import PROGRAM

END_S = 30


@contextmanager
def running_program() -> Iterator[subprocess.Popen[bytes]]:
    """Run the program with an initialized client."""
    with subprocess.Popen(PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        try:
            info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
            send(program, {"id": 1, "method": "initialize", "params": info})
            assert receive(program)["id"] == 1
            send(program, {"method": "notifications/initialized"})
            yield program
        finally:
            program.kill()


def send(program: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    """Send a message."""
    assert program.stdin is not None
    program.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    program.stdin.flush()


def receive(program: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return the next message."""
    assert program.stdout is not None
    message: dict[str, Any] = json.loads(program.stdout.readline())
    return message


def call(program: subprocess.Popen[bytes], number: int, name: str, **arguments: object) -> None:
    """Send a call of a tool."""
    send(program, {"id": number, "method": "tools/call", "params": {"name": name, "arguments": arguments}})


def fill_pipe(program: subprocess.Popen[bytes]) -> None:
    """Let answers wait that the client does not read: the last of them is no longer taken by the pipe."""
    call(program, 2, "terminal", command="true")
    receive(program)
    for number in range(3, 13):
        call(program, number, "terminal", command="head -c 40000 /dev/zero | tr '\\0' x")
    call(program, 13, "write_file", path="/tmp/last", content="x")


def test_signal_ends_the_program_while_the_client_does_not_read() -> None:
    with running_program() as program:
        fill_pipe(program)
        program.terminate()
        assert program.wait(END_S) == 130


def test_end_of_input_ends_the_program_while_the_client_does_not_read() -> None:
    with running_program() as program:
        fill_pipe(program)
        assert program.stdin is not None
        program.stdin.close()
        assert program.wait(END_S) == 0


def test_closed_output_ends_the_program() -> None:
    with running_program() as program:
        call(program, 2, "terminal", command="true")
        receive(program)
        assert program.stdout is not None
        program.stdout.close()
        call(program, 3, "terminal", command="true")
        assert program.wait(END_S) == 1


@pytest.mark.timeout(30)
def test_request_that_cannot_be_read_is_answered() -> None:
    with running_program() as program:
        assert program.stdin is not None
        program.stdin.write(b"no JSON\n\n[1]\n" + b"[" * 5000 + b"\n")
        call(program, 2, "terminal", command="echo \ud800")
        answer = receive(program)
        assert (answer["id"], answer["error"]["code"]) == (2, -32700)
        call(program, 3, "terminal", command="echo on")
        assert receive(program)["id"] == 3


@pytest.mark.whole
@pytest.mark.timeout(45)  # 77 s where each piece copied the line so far
def test_long_line_is_read_in_linear_time() -> None:
    with running_program() as program:
        call(program, 2, "write_file", path="large", content="x" * 100_000_000)
        assert receive(program)["id"] == 2
