"""Calls over stdio, in both protocol eras: state, errors, progress, notices, cancellation, two at once."""

from __future__ import annotations

import json
import sys
import time
from base64 import b64decode
from collections.abc import Callable

import anyio
import mcp_types as types
import pytest
from mcp import Client

from hermes_exec import SandboxPool
from hermes_exec.tools import HostResult, tool
from hermes_mcp import SlotServer
from tests.doors.mcp.conftest import PROGRAM, Mode, StdioClient, program_client, text_of

PNG = b"\x89PNG\r\n\x1a\nrest"


@pytest.fixture(params=["local", pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.whole])])
def stdio_client(request: pytest.FixtureRequest, mode: Mode, docker_image: Callable[[str], str]) -> StdioClient:
    """As the fixture of all tests, on each backend in turn."""
    backend = () if request.param == "local" else ("-b", "docker", "-i", docker_image("debian"))
    return lambda *options: program_client(mode, *backend, *options)


async def run(client: Client, command: str, **more: object) -> dict[str, object]:
    """Run a command that is not an error of the tool, and return its result as data."""
    result = await client.call_tool("terminal", {"command": command, **more})
    assert not result.is_error, result
    data: dict[str, object] = json.loads(text_of(result))
    return data


async def test_tools_of_toolsets_are_listed_without_a_slot(stdio_client: StdioClient) -> None:
    async with stdio_client("--toolsets", "terminal,code_execution") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["terminal", "process", "execute_code"]
        assert "Functions: terminal(command" in str(tools["execute_code"].description)
        assert tools["terminal"].input_schema["required"] == ["command"]
        assert "isolated machine" in str(client.instructions)


async def test_state_of_the_slot_stays_from_call_to_call(stdio_client: StdioClient) -> None:
    async with stdio_client() as client:
        await run(client, "mkdir sub; cd sub; export WORD=kept; echo text > file")
        assert (await run(client, "basename $PWD; echo $WORD"))["output"] == "sub\nkept\n"
        assert "text" in text_of(await client.call_tool("read_file", {"path": "file"}))


async def test_only_wrong_calls_and_failed_tools_are_errors(stdio_client: StdioClient) -> None:
    async with stdio_client() as client:
        assert (await run(client, "exit 3"))["exit_code"] == 3
        for name, arguments, expected in (
            ("terminal", {"comand": "ls"}, "Did you mean 'command'"),
            ("terminl", {}, "Did you mean 'terminal'"),
            ("read_file", {"path": "missing"}, "not_found"),
            ("terminal", {"command": "sleep 60", "timeout": 1}, "timed out"),
        ):
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert expected in text_of(result)


async def test_output_comes_as_progress(stdio_client: StdioClient) -> None:
    reports: list[tuple[float, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, message))

    async with stdio_client() as client:
        call = {"command": "echo one; sleep 0.5; printf '\\303'; sleep 0.5; printf '\\251\\n'; sleep 0.5"}
        result = await client.call_tool("terminal", call, progress_callback=note)
    assert json.loads(text_of(result))["output"] == "one\né\n"
    assert "".join(text or "" for _, text in reports) == "one\né\n"
    assert [count for count, _ in reports] == sorted({count for count, _ in reports})
    assert len(reports) >= 2


async def test_notices_follow_the_result(stdio_client: StdioClient) -> None:
    async with stdio_client() as client:
        started = await run(client, "sleep 0.5; echo done", background=True, notify_on_complete=True)
        for _ in range(100):
            result = await client.call_tool("terminal", {"command": "sleep 0.1"})
            if len(result.content) > 1:
                break
        assert str(started["session_id"]) in text_of(result, 1)
        assert "done" in text_of(result, 1)


async def test_two_calls_run_at_once(stdio_client: StdioClient) -> None:
    outputs: list[object] = []

    async def wait_for_file() -> None:
        outputs.append((await run(client, "until [ -s other ]; do sleep 0.05; done; cat other"))["output"])

    async with stdio_client() as client, anyio.create_task_group() as tasks:
        with anyio.fail_after(60):
            tasks.start_soon(wait_for_file)
            await client.call_tool("write_file", {"path": "other", "content": "text\n"})
    assert outputs == ["text\n"]


async def test_cancelling_a_call_ends_its_processes(stdio_client: StdioClient) -> None:
    async with stdio_client() as client:
        with anyio.move_on_after(1.5):
            await client.call_tool("terminal", {"command": "(sleep 61; true) & sleep 62; true"})
        began = time.monotonic()
        left = await run(client, "sleep 0.2; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")
        assert "sleep 6" not in str(left["output"])
        assert time.monotonic() - began < 20


async def test_a_lost_sandbox_is_an_error_and_the_next_call_has_a_new_slot(stdio_client: StdioClient) -> None:
    run_id = f"mcp-lost-{time.monotonic_ns()}"
    async with stdio_client("-o", f"run_id={run_id}") as client:
        await run(client, "echo text > file")
        reap = [sys.executable, "-m", "hermes_exec.cli.main", "reap", "--run-id", run_id]
        await anyio.run_process(reap)
        lost = await client.call_tool("terminal", {"command": "cat file"})
        assert lost.is_error
        assert json.loads(text_of(lost))["error_kind"] == "slot_lost"
        assert "The next call has a new slot" in text_of(lost)
        assert (await run(client, "ls; echo $?"))["output"] == "0\n"


async def test_the_program_ends_with_its_client(stdio_client: StdioClient) -> None:
    run_id = f"mcp-end-{time.monotonic_ns()}"

    async def listed() -> bool:
        ps = await anyio.run_process([sys.executable, "-m", "hermes_exec.cli.main", "ps", "--json"])
        return run_id.encode() in ps.stdout

    async with stdio_client("-o", f"run_id={run_id}") as client:
        await run(client, "sleep 63 &")
        assert await listed()
    assert not await listed()


async def test_a_signal_ends_the_program_while_it_waits_for_input() -> None:
    async with await anyio.open_process(PROGRAM) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        await program.stdin.send(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        await program.stdout.receive()
        program.terminate()
        with anyio.fail_after(20):
            assert await program.wait() == 130


@tool
def chart() -> HostResult:
    """Draw a chart."""
    return HostResult({"points": 3}, [PNG])


async def test_images_are_image_contents(mode: Mode) -> None:
    async with SandboxPool("local") as pool:
        server = SlotServer(pool, tools_of=lambda _: [chart])
        async with Client(server.mcp, mode=mode) as client:
            result = await client.call_tool("chart")
    text, image = result.content
    assert isinstance(text, types.TextContent)
    assert json.loads(text.text) == {"points": 3}
    assert isinstance(image, types.ImageContent)
    assert (b64decode(image.data), image.mime_type, result.is_error) == (PNG, "image/png", False)
