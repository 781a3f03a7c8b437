"""Answers to clients whose connections break: over HTTP, with a real model on token ids."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream

from hermes_agent.gateway import http
from hermes_agent.gateway.capture import Capture
from hermes_agent.gateway.options import Gateway
from hermes_agent.gateway.server import GatewayServer
from tests.unit.agent.gateway.canned import KEY
from tests.unit.agent.gateway.policy import Policy, answers_of, trained_turns
from tests.unit.agent.tokens.families import FAMILIES

PATHS = ["/v1/chat/completions", "/v1/messages", "/v1/responses"]


class Breaking(ByteStream):
    """A connection that carries one request, and breaks after this many bytes of the response."""

    def __init__(self, request: bytes, carries: int) -> None:
        self.request, self.carries, self.sent, self.cut = request, carries, b"", False
        self.broken = anyio.Event()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        if self.request:
            request, self.request = self.request, b""
            return request
        await self.broken.wait()
        raise anyio.EndOfStream

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        room = self.carries - len(self.sent)
        self.sent += item[:room]
        if len(item) > room:
            self.cut = True
            self.broken.set()
            raise anyio.BrokenResourceError

    async def send_eof(self) -> None:
        pass

    async def aclose(self) -> None:
        self.broken.set()


def post(path: str, content: str, *, stream: bool) -> bytes:
    body: dict[str, Any] = {"model": "policy", "stream": stream, "max_tokens": 100}
    body["input" if path == "/v1/responses" else "messages"] = [{"role": "user", "content": content}]
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_answer_that_broke_off_is_given_again_and_trained_once(
    path: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_LINGER_S", 0.0)
    sampler = Policy(FAMILIES["plain"], answers_of(FAMILIES["plain"]))
    async with Capture(sampler.model(), Gateway(max_requests=10_000, max_roots=10_000)) as capture:
        server = GatewayServer(KEY, capture)

        async def send(content: str, carries: int) -> Breaking:
            connection = Breaking(post(path, content, stream=stream), carries)
            await server.serve(connection)
            return connection

        whole = len((await send("whole", 10**6)).sent)
        for cut in (*range(0, whole - 9, max(1, whole // 60)), *range(whole - 9, whole + 10)):
            calls = sampler.calls
            first = await send(f"{cut:05}", cut)
            (node,) = (each for each in capture.captured.nodes if each.messages[0]["content"] == f"{cut:05}")
            assert node.delivered != first.cut
            second = await send(f"{cut:05}", 10**6)
            assert second.sent.startswith(b"HTTP/1.1 200")
            assert node.delivered
            assert sampler.calls - calls == (1 if first.cut else 2)
    assert trained_turns(capture.captured.sequences()) == sampler.log
