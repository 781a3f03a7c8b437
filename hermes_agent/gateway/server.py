"""The server of a gateway: routes the requests of its connections, and writes answers and errors."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import anyio
from anyio.abc import ByteStream

from hermes_agent.gateway.anthropic import AnthropicMessages
from hermes_agent.gateway.dialect import Dialect, encode, read_json
from hermes_agent.gateway.http import BodyMemory, Disconnected, HttpConnection, HttpRequest
from hermes_agent.gateway.openai import ChatCompletions
from hermes_agent.gateway.request import Answer, ChatRequest, GatewayError
from hermes_agent.gateway.responses import Responses
from hermes_exec.aio.tasks import PlainTaskGroup

logger = logging.getLogger(__name__)
HEADERS_AFTER_S = 10.0
"""How long a stream of events waits for the answer before its headers: until then, errors have their own status."""
KEEP_ALIVE_S = 3.0
MAX_CONNECTIONS = 256
"""The most connections of a gateway. Beyond them, a new connection closes the oldest connection that has not shown the
key. If all have shown it, it closes the connection that has been without a request for longest.
"""
_DIALECTS: dict[str, type[Dialect]] = {
    "/v1/chat/completions": ChatCompletions,
    "/v1/messages": AnthropicMessages,
    "/v1/responses": Responses,
}
_COUNT_TOKENS = "/v1/messages/count_tokens"
_BYTES_PER_TOKEN = 4
_JSON = {"content-type": "application/json"}
_EVENTS = {"content-type": "text/event-stream", "cache-control": "no-cache"}
_CREATED_AT = "2026-01-01T00:00:00Z"


class AnswersRequests(Protocol):
    """An object that samples answers."""

    async def answer(self, request: ChatRequest) -> Answer:
        """Return the answer. Raises GatewayError. The server cancels the call when the client disconnects."""
        ...

    def note_delivered(self, answer: Answer) -> None:
        """Note that the client got the answer."""
        ...

    def note_undelivered(self, answer: Answer) -> None:
        """Note that the client did not get the answer."""
        ...


class GatewayServer:
    """Serves all connections of one gateway.

    Args:
        key: The key that each request has to show, as `Authorization: Bearer` or `x-api-key`.
        capture: Samples the answers.
        model_names: The names that `GET /v1/models` returns.
        headers_after_s: How long a stream of events waits for the answer before it sends its headers.
        keep_alive_s: The pause between the signs of life that it sends from then on.
        on_refusal: Called with the error of each request that gets one.
    """

    def __init__(
        self,
        key: str,
        capture: AnswersRequests,
        model_names: Sequence[str] = ("policy",),
        *,
        headers_after_s: float = HEADERS_AFTER_S,
        keep_alive_s: float = KEEP_ALIVE_S,
        on_refusal: Callable[[GatewayError], None] = lambda _: None,
    ) -> None:
        self._key, self._capture, self._model_names = key.encode(), capture, model_names
        self._headers_after_s, self._keep_alive_s = headers_after_s, keep_alive_s
        self._on_refusal = on_refusal
        self._memory = BodyMemory()
        self._reading = anyio.Lock(fast_acquire=True)  # so that other work gets its turn after each body
        self._connections = 0
        self._without_key: dict[HttpConnection, anyio.CancelScope] = {}
        self._idle: dict[HttpConnection, anyio.CancelScope] = {}

    async def serve(self, stream: ByteStream) -> None:
        """Serve one connection until it ends, and close it. No request makes it raise."""
        connection = HttpConnection(stream, self._memory)
        self._connections += 1
        try:
            if self._connections <= MAX_CONNECTIONS or self._close_one():
                async with anyio.create_task_group() as reader:
                    self._without_key[connection] = reader.cancel_scope
                    reader.start_soon(connection.read)
                    await self._serve_requests(connection, reader.cancel_scope)
                    reader.cancel_scope.cancel()
        finally:
            self._connections -= 1
            for connections in (self._without_key, self._idle):
                connections.pop(connection, None)
            await connection.aclose()

    def _close_one(self) -> bool:
        """Close the oldest connection that has not shown the key, which may be a neighbour's where slots share a
        loopback, or else the one that has been without a request for longest. Return whether there was one.
        """
        for connections in (self._without_key, self._idle):
            for oldest in connections:
                connections.pop(oldest).cancel()
                return True
        return False

    async def _serve_requests(self, connection: HttpConnection, scope: anyio.CancelScope) -> None:
        try:
            while True:
                try:
                    if connection not in self._without_key:
                        self._idle[connection] = scope
                    request = await connection.next_request()
                    self._idle.pop(connection, None)
                except GatewayError as error:
                    await self._refuse(connection, ChatCompletions, error)
                else:
                    if request is None:
                        return
                    await self._exchange(connection, request)
                if not await connection.finish_request():
                    return
        except Disconnected:
            return
        except Exception:
            # No request of a tenant may end the gateway.
            logger.exception("a connection of the gateway failed")

    async def _exchange(self, connection: HttpConnection, request: HttpRequest) -> None:
        dialect = AnthropicMessages if request.path.startswith("/v1/messages") else ChatCompletions
        try:
            if request.method == "HEAD" and request.path == "/api/hello":
                await connection.respond(200, b"", {})
            elif request.method == "POST" and request.path in _DIALECTS:
                await self._answer(connection, request, _DIALECTS[request.path])
            elif request.method == "POST" and request.path == _COUNT_TOKENS:
                await self._count_tokens(connection, request)
            elif request.method == "GET" and request.path == "/v1/models":
                self._check_key(connection, request)
                await connection.respond(200, encode(self._models()), _JSON)
            else:
                raise GatewayError(404, f"there is no {request.method} {request.path}"[:200], "not_found")
        except GatewayError as error:
            await self._refuse(connection, dialect, error)

    async def _refuse(self, connection: HttpConnection, dialect: type[Dialect], error: GatewayError) -> None:
        self._on_refusal(error)
        # Without this header, the clients of OpenAI and of Anthropic repeat requests after 429 and 5xx.
        headers = _JSON if error.retry else {**_JSON, "x-should-retry": "false"}
        await connection.respond(error.status, encode(dialect.error_body(error)), headers)

    def _check_key(self, connection: HttpConnection, request: HttpRequest) -> None:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        keys = bearer.strip() if scheme.lower() == "bearer" else "", request.headers.get("x-api-key", "")
        if not any(hmac.compare_digest(key.encode(), self._key) for key in keys):
            raise GatewayError(401, "the key is wrong", "invalid_api_key", kind="authentication_error")
        self._without_key.pop(connection, None)

    async def _answer(self, connection: HttpConnection, request: HttpRequest, kind: type[Dialect]) -> None:
        self._check_key(connection, request)
        body = await connection.read_body(request)
        async with self._reading:
            dialect = kind(read_json(body), request.headers)
        if dialect.request.stream:
            await self._stream(connection, dialect)
            return
        with connection.cancel_when_gone():
            answer = await self._sample(dialect.request)
            await self._deliver(
                connection, answer, lambda: connection.respond(200, encode(dialect.answer_body(answer)), _JSON)
            )

    async def _stream(self, connection: HttpConnection, dialect: Dialect) -> None:
        """Send the answer as events. Once the headers are sent, an error is an event too."""
        outcome: list[Answer | GatewayError] = []
        done = anyio.Event()

        async def sample() -> None:
            try:
                outcome.append(await self._sample(dialect.request))
            except GatewayError as error:
                outcome.append(error)
            done.set()

        with connection.cancel_when_gone():
            try:
                async with PlainTaskGroup() as group:
                    group.start_soon(sample)
                    begun = await self._keep_alive(connection, dialect, done)
            except BaseException:
                for result in outcome:  # the client left before the answer was sent
                    if isinstance(result, Answer):
                        self._capture.note_undelivered(result)
                raise
            (result,) = outcome
            if isinstance(result, Answer):
                answer = result
                await self._deliver(
                    connection, answer, lambda: _send_events(connection, dialect.answer_events(answer), begun=begun)
                )
            elif begun:
                await connection.end_response(dialect.error_events(result))
            else:
                raise result

    async def _keep_alive(self, connection: HttpConnection, dialect: Dialect, done: anyio.Event) -> bool:
        """Wait for the answer, and send signs of life if that takes long. Return whether the headers are sent."""
        with anyio.move_on_after(self._headers_after_s):
            await done.wait()
        if done.is_set():
            return False
        await connection.begin_response(_EVENTS, dialect.KEEP_ALIVE)
        while True:
            with anyio.move_on_after(self._keep_alive_s):
                await done.wait()
            if done.is_set():
                return True
            await connection.send(dialect.KEEP_ALIVE)

    async def _sample(self, request: ChatRequest) -> Answer:
        try:
            return await self._capture.answer(request)
        except GatewayError:
            raise
        except Exception as error:
            # The client is the tenant's: it gets no text of ours, and none of its requests ends the gateway.
            logger.exception("the gateway failed to answer a request")
            raise GatewayError(500, "the gateway failed", "server_error", kind="server_error") from error

    async def _deliver(self, connection: HttpConnection, answer: Answer, send: Callable[[], Awaitable[None]]) -> None:
        sent = False
        try:
            await send()
            sent = not connection.gone
        finally:
            (self._capture.note_delivered if sent else self._capture.note_undelivered)(answer)

    async def _count_tokens(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Return an estimate: clients only use it to see how full their context is."""
        self._check_key(connection, request)
        body = await connection.read_body(request)
        async with self._reading:
            AnthropicMessages(read_json(body), request.headers)
        await connection.respond(200, encode({"input_tokens": len(body) // _BYTES_PER_TOKEN}), _JSON)

    def _models(self) -> dict[str, Any]:
        """Return a list of the models that clients of OpenAI and of Anthropic read."""
        names = list(self._model_names)
        data = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "hermes-exec",
                "type": "model",
                "display_name": name,
                "created_at": _CREATED_AT,
            }
            for name in names
        ]
        page = {"has_more": False, "first_id": names[0] if names else None, "last_id": names[-1] if names else None}
        return {"object": "list", "data": data, **page}


async def _send_events(connection: HttpConnection, events: bytes, *, begun: bool) -> None:
    if begun:
        await connection.end_response(events)
    else:
        await connection.respond(200, events, _EVENTS)
