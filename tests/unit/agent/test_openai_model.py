"""The model behind an endpoint, against a real HTTP server on loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hermes_agent import ContextExceeded, ModelError, OpenAIModel
from hermes_exec.errors import ConfigError, ErrorCause
from tests.unit.agent.endpoint import Answer, endpoint, ok, refusal

pytestmark = [pytest.mark.anyio, pytest.mark.sample]
TOOLS = [{"type": "function", "function": {"name": "do", "parameters": {"type": "object"}}}]
ASK = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def model(base_url: str, **options: Any) -> AsyncIterator[OpenAIModel]:
    made = OpenAIModel("m", base_url=base_url, api_key="k", **options)
    try:
        yield made
    finally:
        await made.aclose()


def tool_call(name: str | None, arguments: object, call_id: str | None = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def test_request_and_answer() -> None:
    said = {"content": "look", "tool_calls": [tool_call("do", '{"x": 1}')], "reasoning_content": "hm"}
    with endpoint(ok(said, "tool_calls")) as server:
        async with model(server.base_url) as made:
            done = await made.complete(ASK, TOOLS, temperature=0.5, max_tokens=None, top_k=3, seed=7)
    assert server.requests == [
        {"model": "m", "messages": ASK, "tools": TOOLS, "temperature": 0.5, "top_k": 3, "seed": 7}
    ]
    assert server.authorizations == ["Bearer k"]
    assert (done.content, done.reasoning, done.finish_reason) == ("look", "hm", "stop")
    assert [(c.id, c.name, c.arguments, c.error) for c in done.tool_calls] == [("c1", "do", '{"x": 1}', None)]
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.requests) == (11, 3, 1)


async def test_without_tools_there_is_no_tool_choice() -> None:
    with endpoint(ok({"content": "x"})) as server:
        async with model(server.base_url) as made:
            await made.complete(ASK, [], tool_choice="none")
    assert set(server.requests[0]) == {"model", "messages"}


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({"reasoning_content": "a", "reasoning": "b"}, "a"),
        ({"reasoning_content": " ", "reasoning": "b"}, "b"),
        ({"reasoning_details": [{"text": "c"}, {"summary": "no"}, {"text": "d"}]}, "c\nd"),
        ({}, None),
    ],
)
async def test_reasoning(fields: dict[str, Any], reasoning: str | None) -> None:
    with endpoint(ok({"content": "x", **fields})) as server:
        async with model(server.base_url) as made:
            assert (await made.complete(ASK, [])).reasoning == reasoning


async def test_cut_answer() -> None:
    with endpoint(ok({"content": "x"}, "length")) as server:
        async with model(server.base_url) as made:
            assert (await made.complete(ASK, [])).finish_reason == "length"


async def test_calls_in_plain_text_are_read_by_the_parser() -> None:
    said = {"content": '<think>hm</think>ok <tool_call>{"name": "do", "arguments": {}}</tool_call>'}
    with endpoint(ok(said), ok(said)) as server:
        async with model(server.base_url, parser="hermes") as made:
            done = await made.complete(ASK, TOOLS)
        async with model(server.base_url) as plain:
            untouched = await plain.complete(ASK, TOOLS)
    assert ([c.name for c in done.tool_calls], done.content, done.reasoning) == (["do"], "ok", "hm")
    assert (untouched.tool_calls, untouched.content) == ((), said["content"])


async def test_call_without_a_name_is_an_error_for_the_model() -> None:
    with endpoint(ok({"content": None, "tool_calls": [tool_call("", "{}", None)]})) as server:
        async with model(server.base_url) as made:
            done = await made.complete(ASK, TOOLS)
    assert done.tool_calls[0].error
    assert done.tool_calls[0].id


@pytest.mark.parametrize("status", [408, 429, 502, 503, 529])
async def test_refusals_before_the_work_are_tried_again(status: int) -> None:
    busy = refusal(status, **{"retry-after": "0"})
    with endpoint(busy, busy, ok({"content": "x"})) as server:
        async with model(server.base_url) as made:
            assert (await made.complete(ASK, [])).content == "x"
    assert len(server.requests) == 3


async def test_tries_are_bounded() -> None:
    with endpoint(*[refusal(503, "full", **{"retry-after": "0"}) for _ in range(3)]) as server:
        async with model(server.base_url, max_retries=2) as made:
            with pytest.raises(ModelError, match=r"HTTP 503.*full") as caught:
                await made.complete(ASK, [])
    assert (caught.value.status, caught.value.cause) == (503, ErrorCause.PROVIDER)


@pytest.mark.parametrize(
    ("status", "code", "cause"),
    [
        (400, None, ErrorCause.CONFIG),
        (401, None, ErrorCause.CONFIG),
        (404, None, ErrorCause.CONFIG),
        (500, None, ErrorCause.PROVIDER),
        (504, None, ErrorCause.PROVIDER),
        (429, "insufficient_quota", ErrorCause.PROVIDER),
    ],
)
async def test_other_refusals_are_errors_at_once(status: int, code: str | None, cause: ErrorCause) -> None:
    with endpoint(refusal(status, code=code)) as server:
        async with model(server.base_url) as made:
            with pytest.raises(ModelError) as caught:
                await made.complete(ASK, [])
    assert (caught.value.status, caught.value.cause, len(server.requests)) == (status, cause, 1)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("x", "context_length_exceeded"),
        ("This model's maximum context length is 8192 tokens", None),
        ("exceeds the available context size", None),
    ],
)
async def test_too_long_conversation(message: str, code: str | None) -> None:
    with endpoint(refusal(400, message, code)) as server:
        async with model(server.base_url) as made:
            with pytest.raises(ContextExceeded):
                await made.complete(ASK, [])


async def test_silence_is_an_error_and_not_asked_again() -> None:
    asked = threading.Event()
    released = threading.Event()

    def silent() -> Answer:
        asked.set()
        released.wait(10)
        return ok({"content": "late"})

    with endpoint(silent) as server:
        async with model(server.base_url, timeout_s=0.3) as made:
            with pytest.raises(ModelError, match=r"within 0\.3 s"):
                await made.complete(ASK, [])
        released.set()
    assert asked.is_set()
    assert len(server.requests) == 1


async def test_broken_stream_is_not_asked_again() -> None:
    with endpoint(Answer(200, b'{"id":', {"content-type": "application/json"})) as server:
        async with model(server.base_url) as made:
            with pytest.raises(ModelError):
                await made.complete(ASK, [])
    assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"choices": []}', b'"x"', b'{"choices": [{"index": 0}]}'])
async def test_answer_without_a_choice(body: bytes) -> None:
    with endpoint(Answer(200, body, {"content-type": "application/json"})) as server:
        async with model(server.base_url) as made:
            with pytest.raises(ModelError):
                await made.complete(ASK, [])


async def test_no_server_is_tried_again_and_then_an_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with model(f"http://127.0.0.1:{port}/v1", max_retries=1) as made:
        with pytest.raises(ModelError, match="no connection"):
            await made.complete(ASK, [])


@pytest.mark.parametrize(
    "options",
    [{"timeout_s": 0}, {"timeout_s": float("nan")}, {"connect_timeout_s": -1}, {"max_retries": -1}, {"parser": "x"}],
)
async def test_settings_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        OpenAIModel("m", **options)
