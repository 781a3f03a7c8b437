"""Clients over HTTP, in both protocol eras: whose slot a call is in, cancellation, and who is refused."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.doors.mcp.conftest import HttpServer, Mode, running_server, text_of


@asynccontextmanager
async def connect(url: str, mode: Mode, **headers: str) -> AsyncIterator[Client]:
    """Connect a client with more headers."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


async def output_of(client: Client, command: str) -> str:
    """Run a command and return its output."""
    result = await client.call_tool("terminal", {"command": command})
    assert not result.is_error, result
    return str(json.loads(text_of(result))["output"])


async def test_session_has_a_slot_of_its_own(http_server: HttpServer) -> None:
    url = http_server()
    async with connect(url, "legacy") as one, connect(url, "legacy") as other:
        await output_of(one, "echo one > file; export WORD=one")
        assert await output_of(other, "ls; echo $WORD") == "\n"
        assert await output_of(one, "cat file; echo $WORD") == "one\none\n"


async def test_request_without_a_name_has_a_slot_of_its_own(http_server: HttpServer) -> None:
    async with connect(http_server(), "auto") as client:
        assert client.protocol_version == "2026-07-28"
        await output_of(client, "echo one > file")
        assert await output_of(client, "ls") == ""


async def test_named_slot_is_the_same_for_all_who_name_it(http_server: HttpServer, mode: Mode) -> None:
    url = http_server()
    async with connect(url, mode, hermes_slot=f"same-{mode}") as one, connect(f"{url}/same-{mode}", mode) as same:
        await output_of(one, "echo one > file")
        assert await output_of(same, "cat file") == "one\n"
        async with connect(f"{url}/other-{mode}", mode) as other:
            assert await output_of(other, "ls") == ""


async def test_named_slot_is_released_by_delete(http_server: HttpServer) -> None:
    url = http_server()
    async with connect(f"{url}/mine", "auto") as client, httpx2.AsyncClient() as http:
        await output_of(client, "echo one > file")
        assert (await http.delete(f"{url}/mine")).status_code == 200
        assert await output_of(client, "ls") == ""


async def test_slot_of_a_session_ends_with_it_or_after_a_time(http_server: HttpServer) -> None:
    url = http_server("-o", "slots_per_sandbox=1", "-o", "acquire_timeout_s=20", "--idle-timeout", "2")
    for _ in range(2):  # the only slot is free again
        async with connect(url, "legacy") as client:
            await output_of(client, "true")
    for name in ("one", "two"):
        async with connect(f"{url}/{name}", "auto") as client:
            await output_of(client, "true")


async def test_use_of_all_slots_is_an_error_with_a_remedy(http_server: HttpServer) -> None:
    url = http_server("-o", "slots_per_sandbox=1", "-o", "acquire_timeout_s=1")
    async with connect(f"{url}/one", "auto") as one, connect(f"{url}/two", "auto") as two:
        await output_of(one, "true")
        result = await two.call_tool("terminal", {"command": "true"})
    assert result.is_error
    assert "-o max_sandboxes=N" in text_of(result)
    assert "--idle-timeout" in text_of(result)


async def test_two_calls_run_at_once(http_server: HttpServer, mode: Mode) -> None:
    outputs: list[str] = []

    async def wait_for_file(client: Client) -> None:
        outputs.append(await output_of(client, "until [ -s other ]; do sleep 0.05; done; cat other"))

    async with connect(f"{http_server()}/calls-{mode}", mode) as client, anyio.create_task_group() as tasks:
        with anyio.fail_after(60):
            tasks.start_soon(wait_for_file, client)
            await client.call_tool("write_file", {"path": "other", "content": "text\n"})
    assert outputs == ["text\n"]


async def test_output_comes_as_progress(http_server: HttpServer, mode: Mode) -> None:
    texts: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        texts.append(message or "")

    async with connect(http_server(), mode) as client:
        call = {"command": "echo one; sleep 0.5; echo two; sleep 0.5"}
        await client.call_tool("terminal", call, progress_callback=note)
    assert texts == ["one\n", "two\n"]


async def test_cancelling_a_call_ends_its_processes(http_server: HttpServer, mode: Mode) -> None:
    async with connect(f"{http_server()}/calls-{mode}", mode) as client:
        with anyio.move_on_after(1.5):
            await client.call_tool("terminal", {"command": "(sleep 61; true) & sleep 62; true"})
        with anyio.fail_after(20):
            left = await output_of(client, "sleep 0.2; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")
    assert "sleep 6" not in left


async def test_slot_that_is_deleted_during_a_call_is_released(http_server: HttpServer) -> None:
    url = http_server("-o", "slots_per_sandbox=1", "-o", "acquire_timeout_s=20", "--idle-timeout", "2")

    async def delete(progress: float, total: float | None, message: str | None) -> None:
        await http.delete(f"{url}/deleted")

    async with httpx2.AsyncClient() as http, connect(f"{url}/deleted", "auto") as client:
        call = {"command": "echo one; sleep 60"}
        lost = await client.call_tool("terminal", call, progress_callback=delete)
        async with connect(f"{url}/next", "auto") as other:
            assert await output_of(other, "echo one") == "one\n"
    assert "slot_lost" in text_of(lost)


async def test_signal_ends_the_program_during_a_call(mode: Mode) -> None:
    started = anyio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        started.set()

    async def call(url: str) -> None:
        with suppress(Exception):  # the connection ends
            async with connect(url, mode) as client:
                await client.call_tool("terminal", {"command": "echo one; sleep 64"}, progress_callback=note)

    async with anyio.create_task_group() as tasks:
        with running_server((), {}) as url:
            tasks.start_soon(call, url)
            with anyio.fail_after(60):
                await started.wait()
            began = time.monotonic()
        assert time.monotonic() - began < 20
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("headers", "status", "text"),
    [
        ({"Host": "evil.example"}, 403, "Host"),
        ({"Origin": "https://evil.example"}, 403, "--allow-origin https://evil.example"),
        ({"Hermes-Slot": "../x"}, 400, "1 to 64 letters"),
    ],
)
async def test_requests_of_others_are_refused(
    http_server: HttpServer, headers: dict[str, str], status: int, text: str
) -> None:
    async with httpx2.AsyncClient(headers=headers) as http:
        answer = await http.post(http_server(), json={})
    assert (answer.status_code, text in answer.text) == (status, True)


async def test_token_is_required_where_one_is_set(http_server: HttpServer) -> None:
    url = http_server(HERMES_MCP_TOKEN="secret")
    async with httpx2.AsyncClient() as http:
        for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "secret"}):
            answer = await http.post(url, json={}, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    async with connect(url, "auto", authorization="Bearer secret") as client:
        assert await output_of(client, "echo one") == "one\n"
