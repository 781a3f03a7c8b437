"""A gateway server on loopback whose answers a test chooses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import SocketAttribute, SocketStream

from hermes_agent.gateway.request import Answer, ChatRequest, GatewayError
from hermes_agent.gateway.server import GatewayServer
from hermes_agent.gateway.tree import Node
from hermes_agent.messages import Completion, TokenUsage, ToolCall

KEY = "hx-test"
USAGE = TokenUsage(prompt_tokens=50, completion_tokens=7, requests=1, reasoning_tokens=3, cached_tokens=20)
TEXT = Completion("Hello, wörld", usage=USAGE)
CALLS = Completion(
    "I look.",
    (
        ToolCall("call00001", "terminal", '{"command": "ls", "timeout_s": 1.5}'),
        ToolCall("call00002", "read", '{"path": "a"}'),
    ),
    reasoning="Two calls.",
    usage=USAGE,
)
CUT = Completion("Hel", finish_reason="length", usage=USAGE)


@dataclass
class CannedCapture:
    """Answers each request with the next outcome; the last one again and again.

    A function as outcome is awaited before the outcome after it.
    """

    outcomes: list[Completion | GatewayError | Callable[[], Any]] = field(default_factory=lambda: [TEXT])
    requests: list[ChatRequest] = field(default_factory=list)
    deliveries: list[bool] = field(default_factory=list)
    begun: anyio.Event = field(default_factory=anyio.Event)
    cancelled: anyio.Event = field(default_factory=anyio.Event)

    async def answer(self, request: ChatRequest) -> Answer:
        self.requests.append(request)
        self.begun.set()
        number = len(self.requests) - 1
        try:
            await anyio.lowlevel.checkpoint()
            outcome = self._next()
            while callable(outcome):
                await outcome()
                outcome = self._next()
        except anyio.get_cancelled_exc_class():
            self.cancelled.set()
            raise
        if isinstance(outcome, GatewayError):
            raise outcome
        node = Node(None, outcome, b"", 0, number, request.model, tuple(request.messages), tuple(request.tools))
        return Answer(f"a{number}", node, outcome)

    def _next(self) -> Completion | GatewayError | Callable[[], Any]:
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]

    def note_delivered(self, answer: Answer) -> None:
        self.deliveries.append(True)

    def note_undelivered(self, answer: Answer) -> None:
        self.deliveries.append(False)


@asynccontextmanager
async def serve(capture: CannedCapture, **options: Any) -> AsyncIterator[int]:
    """Serve on a port of loopback, and yield it."""
    server = GatewayServer(KEY, capture, ("policy", "helper"), **options)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, server.serve)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


async def connect(port: int) -> SocketStream:
    return await anyio.connect_tcp("127.0.0.1", port)


async def read_all(stream: SocketStream) -> bytes:
    """Return everything until the server closes."""
    parts = []
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            parts.append(await stream.receive())
    return b"".join(parts)
