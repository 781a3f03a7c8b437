"""The HTTP server of a gateway, below its dialects: framing, bounds, disconnects, hostile bytes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import h11
import pytest
from anyio.abc import ByteStream, SocketStream
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_agent.gateway import http
from hermes_agent.gateway.http import MAX_BODY_BYTES, BodyMemory, HttpConnection
from hermes_agent.gateway.server import MAX_CONNECTIONS, GatewayServer
from hermes_agent.messages import Completion
from tests.unit.agent.gateway.canned import KEY, TEXT, CannedCapture, connect, read_all, serve

pytestmark = pytest.mark.loops
BODY = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "Hi"}]}).encode()


def post(body: bytes = BODY, *headers: str, path: str = "/v1/chat/completions", key: str = KEY) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", *headers]
    if not any("transfer-encoding" in line.lower() for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def exchange(port: int, *pieces: bytes) -> list[tuple[int, bytes]]:
    """Send pieces on a connection, close it once there are answers, and return their statuses and bodies."""
    async with await connect(port) as stream:
        for piece in pieces:
            await stream.send(piece)
        return await read_answers(stream)


async def read_answers(stream: SocketStream, count: int = 1) -> list[tuple[int, bytes]]:
    client = h11.Connection(h11.CLIENT)
    answers: list[tuple[int, bytes]] = []
    for _ in range(count):
        client.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
        client.send(h11.EndOfMessage())
        status, parts = 0, []
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                try:
                    client.receive_data(await stream.receive())
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    client.receive_data(b"")
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif isinstance(event, h11.ConnectionClosed):
                return answers
        answers.append((status, b"".join(parts)))
        if client.their_state is h11.MUST_CLOSE:
            break
        client.start_next_cycle()
    return answers


def content_of(body: bytes) -> object:
    return json.loads(body)["choices"][0]["message"]["content"]


async def test_requests_share_a_connection() -> None:
    async with serve(CannedCapture()) as port, await connect(port) as stream:
        for _ in range(3):
            await stream.send(post())
            ((status, body),) = await read_answers(stream)
            assert (status, content_of(body)) == (200, TEXT.content)


async def test_pipelined_requests_are_answered_in_order() -> None:
    answers = [Completion(text) for text in "abc"]
    async with serve(CannedCapture([*answers])) as port, await connect(port) as stream:
        await stream.send(post() * 3)
        assert [content_of(body) for _, body in await read_answers(stream, 3)] == ["a", "b", "c"]


async def test_chunked_body_is_read() -> None:
    chunks = b"".join(b"%x\r\n%c\r\n" % (1, byte) for byte in BODY) + b"0\r\n\r\n"
    async with serve(capture := CannedCapture()) as port:
        ((status, _),) = await exchange(port, post(b"", "Transfer-Encoding: chunked") + chunks)
    assert status == 200
    assert capture.requests[0].messages == [{"role": "user", "content": "Hi"}]


async def test_client_that_waits_for_100_continue_sends_its_body() -> None:
    head, body = post(BODY, "Expect: 100-continue").split(b"\r\n\r\n")
    async with serve(CannedCapture()) as port, await connect(port) as stream:
        await stream.send(head + b"\r\n\r\n")
        assert (await stream.receive()).startswith(b"HTTP/1.1 100 ")
        await stream.send(body)
        ((status, _),) = await read_answers(stream)
        assert status == 200


async def test_client_that_waits_for_100_continue_is_refused_before_its_body() -> None:
    head = post(b"", "Expect: 100-continue", "Content-Length: 70000000").replace(b"\r\nContent-Length: 0", b"")
    async with serve(CannedCapture()) as port, await connect(port) as stream:
        await stream.send(head)
        answer = await stream.receive()
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in answer.lower()


@pytest.mark.parametrize("size", [MAX_BODY_BYTES, MAX_BODY_BYTES + 1], ids=["largest", "too_large"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_body_has_a_bound(size: int, chunked: bool) -> None:
    piece = b" " * (1 << 20)
    body = [piece] * (size >> 20) + [b" " * (size % (1 << 20))]
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    head = post(b"", framing).replace(b"\r\nContent-Length: 0", b"")
    if chunked:
        body = [b"%x\r\n%b\r\n" % (len(part), part) for part in body if part] + [b"0\r\n\r\n"]
    async with serve(CannedCapture()) as port:
        ((status, answer),) = await exchange(port, head, *body)
    # A body of blanks is no JSON.
    assert status == (400 if size == MAX_BODY_BYTES else 413)
    assert b"no JSON" in answer if status == 400 else b"64 MiB" in answer


async def test_head_has_a_bound() -> None:
    async with serve(CannedCapture()) as port:
        ((largest, _),) = await exchange(port, post(BODY, f"X-Long: {'a' * 60_000}"))
        ((status, _),) = await exchange(port, b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 300_000)
    assert (largest, status) == (200, 431)


async def test_new_connection_closes_the_oldest_one_without_the_key() -> None:
    """Where slots share a loopback, a neighbour may open connections, and gets no answer without the key."""
    async with AsyncExitStack() as stack, serve(CannedCapture()) as port:
        owner = await stack.enter_async_context(await connect(port))
        await owner.send(post())
        assert [status for status, _ in await read_answers(owner)] == [200]
        others = [await stack.enter_async_context(await connect(port)) for _ in range(MAX_CONNECTIONS + 20)]
        for stream in (owner, others[-1]):
            await stream.send(post())
            assert [status for status, _ in await read_answers(stream)] == [200]
        with anyio.fail_after(10):
            assert await read_all(others[0]) == b""


async def test_new_connection_closes_the_one_without_a_request_for_longest() -> None:
    """A harness that makes a client for each request may leave all of their connections open."""
    capture = CannedCapture([anyio.sleep_forever, TEXT])
    async with AsyncExitStack() as stack, serve(capture) as port:
        waits = await stack.enter_async_context(await connect(port))
        await waits.send(post())
        await capture.begun.wait()
        streams = []
        for _ in range(MAX_CONNECTIONS + 20):
            stream = await stack.enter_async_context(await connect(port))
            await stream.send(post())
            assert [status for status, _ in await read_answers(stream)] == [200]
            streams.append(stream)
        with anyio.fail_after(10):
            assert await read_all(streams[0]) == b""
        await streams[-1].send(post())
        assert [status for status, _ in await read_answers(streams[-1])] == [200]
        assert not capture.cancelled.is_set()


async def test_bodies_of_all_connections_have_a_bound() -> None:
    memory = BodyMemory(1000)
    capture = CannedCapture([anyio.sleep_forever, TEXT])
    server = GatewayServer(KEY, capture)
    server._memory = memory
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    large = BODY + b" " * 800
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, server.serve)
        async with await connect(port) as first:
            await first.send(post(large))
            await capture.begun.wait()
            ((status, _),) = await exchange(port, post(large))
            assert status == 503
        await capture.cancelled.wait()
        for _ in range(3):  # the memory is free again
            ((status, _),) = await exchange(port, post(large))
            assert status == 200
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"HEAD /api/hello HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET /v1/models?limit=1 HTTP/1.1\r\nHost: x\r\nX-Api-Key: hx-test\r\n\r\n", 200),
        (b"GET http://127.0.0.1:1/v1/models HTTP/1.1\r\nHost: x\r\nX-Api-Key: hx-test\r\n\r\n", 200),
        (post(path="/v1/chat/completions?beta=true"), 200),
        (post().replace(b"HTTP/1.1", b"HTTP/1.0"), 200),
        (b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 401),
        (post(key="hx-tesT"), 401),
        (post(key=""), 401),
        (post(key="hx-test\xff"), 401),
        (post(path="/v1/embeddings"), 404),
        (b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\nX-Api-Key: hx-test\r\n\r\n", 404),
        (b"GET /v1/messages HTTP/1.1\r\nHost: x\r\nX-Api-Key: hx-test\r\n\r\n", 404),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (post(b"", "Transfer-Encoding: gzip"), 501),
        (post(b"", "Transfer-Encoding: chunked") + b"zz\r\n", 400),
        (post(BODY, "Content-Length: 5"), 400),
    ],
)
async def test_status_of_a_request(request_bytes: bytes, status: int) -> None:
    async with serve(CannedCapture()) as port, await connect(port) as stream:
        await stream.send(request_bytes)
        answer = await stream.receive()
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_refused_request_leaves_the_connection_usable() -> None:
    async with serve(CannedCapture()) as port, await connect(port) as stream:
        await stream.send(post(path="/v1/telemetry") + post(b"{") + post())
        assert [status for status, _ in await read_answers(stream, 3)] == [404, 400, 200]


@pytest.mark.parametrize("stream_answer", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("headers_after_s", [60.0, 0.0], ids=["before_headers", "after_headers"])
async def test_client_that_disconnects_cancels_the_wait(stream_answer: bool, headers_after_s: float) -> None:
    capture = CannedCapture([anyio.sleep_forever, TEXT])
    body = json.dumps({**json.loads(BODY), "stream": stream_answer}).encode()
    async with serve(capture, headers_after_s=headers_after_s, keep_alive_s=0.01) as port:
        async with await connect(port) as stream:
            await stream.send(post(body))
            await capture.begun.wait()
        await capture.cancelled.wait()
        assert capture.deliveries == []
        ((status, _),) = await exchange(port, post())
        assert status == 200


async def test_answer_to_a_client_that_left_is_undelivered() -> None:
    """The stream accepts the answer, as the connection of a slot does, but the client has left."""
    left, answered = anyio.Event(), anyio.Event()

    class Leaving(Pieces):
        async def send(self, item: bytes) -> None:
            left.set()
            await answered.wait()  # the reader learns of the end meanwhile

        async def receive(self, max_bytes: int = 65536) -> bytes:
            if self.pieces:
                return self.pieces.pop(0)
            await left.wait()
            answered.set()
            raise anyio.EndOfStream

    capture = CannedCapture()
    await GatewayServer(KEY, capture).serve(Leaving([post()]))
    assert capture.deliveries == [False]


class Pieces(ByteStream):
    """A connection on which given pieces arrive. Then the client closes its side, after the server has answered."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces, self.sent, self.closed = [*pieces], b"", False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        if self.pieces:
            return self.pieces.pop(0)
        for _ in range(50):  # more turns of the event loop than an answer takes
            await anyio.lowlevel.checkpoint()
        raise anyio.EndOfStream

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        self.sent += item

    async def send_eof(self) -> None:
        pass

    async def aclose(self) -> None:
        self.closed = True


@asynccontextmanager
async def served(pieces: list[bytes]) -> AsyncIterator[tuple[CannedCapture, Pieces, GatewayServer]]:
    capture, stream = CannedCapture(), Pieces(pieces)
    server = GatewayServer(KEY, capture)
    with anyio.fail_after(60):
        await server.serve(stream)
    yield capture, stream, server
    assert stream.closed
    assert server._connections == server._memory._used == 0


CHUNKED = post(b"", "Transfer-Encoding: chunked", "Expect: 100-continue")
CHUNKED += b"5\r\n" + BODY[:5] + b"\r\n" + b"%x;a=b\r\n" % len(BODY[5:]) + BODY[5:] + b"\r\n0\r\nX: y\r\n\r\n"


@pytest.mark.parametrize("whole", [post(), CHUNKED], ids=["length", "chunked"])
async def test_request_cut_in_two_at_every_place_is_answered(whole: bytes) -> None:
    for place in range(1, len(whole)):
        async with served([whole[:place], whole[place:]]) as (capture, stream, _):
            pass
        assert content_of(stream.sent.rpartition(b"\r\n\r\n")[2]) == TEXT.content
        assert capture.deliveries == [True]


async def test_request_that_ends_at_every_place_is_not_sampled() -> None:
    for whole in (post(), CHUNKED):
        for place in range(len(whole)):
            async with served([whole[:place]]) as (capture, stream, _):
                pass
            assert capture.requests == []
            assert stream.sent in (b"", b"HTTP/1.1 100 \r\n\r\n")


async def test_request_in_single_bytes_is_answered() -> None:
    async with served([bytes([byte]) for byte in CHUNKED]) as (capture, _, _):
        assert capture.deliveries == [True]


PIECES = st.sampled_from([post(), CHUNKED, post(b"{"), post(path="/"), post(BODY, "Connection: close"), BODY, b"\r\n"])


@settings(max_examples=300)
@given(st.lists(st.one_of(PIECES, st.binary(max_size=40)), max_size=4), st.randoms(use_true_random=False))
def test_hostile_bytes_end_the_connection_and_nothing_else(parts: list[bytes], random: object) -> None:
    data = bytearray(b"".join(parts))
    for _ in range(random.randrange(3)):  # type: ignore[attr-defined]
        if data:
            data[random.randrange(len(data))] = random.randrange(256)  # type: ignore[attr-defined]
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(3))  # type: ignore[attr-defined]
    pieces = [bytes(data[a:b]) for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]

    async def run() -> None:
        async with served(pieces) as (capture, stream, _):
            pass
        assert len(capture.deliveries) <= len(parts)
        assert stream.sent[:9] in (b"", b"HTTP/1.1 ")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http, "_LINGER_S", 0.01)
        anyio.run(run)


async def test_answer_to_a_client_that_does_not_read_and_leaves_is_undelivered() -> None:
    """The answer is there while a sign of life still waits for the client."""
    leave = anyio.Event()
    answered = anyio.Event()
    capture = CannedCapture([answered.wait, TEXT])

    class Stuck(Pieces):
        async def receive(self, max_bytes: int = 65536) -> bytes:
            if not self.pieces:
                await leave.wait()
                raise anyio.BrokenResourceError
            return await super().receive(max_bytes)

        async def send(self, item: bytes) -> None:
            await anyio.sleep_forever()

    server = GatewayServer(KEY, capture, headers_after_s=0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, Stuck([post(json.dumps({**json.loads(BODY), "stream": True}).encode())]))
        await capture.begun.wait()
        answered.set()
        await anyio.wait_all_tasks_blocked()
        assert capture.deliveries == []
        leave.set()
    assert capture.deliveries == [False]


async def test_reader_stops_while_a_client_sends_ahead() -> None:
    """A client cannot fill the memory with requests that it does not wait for."""
    taken = 0

    class Endless(Pieces):
        async def receive(self, max_bytes: int = 65536) -> bytes:
            nonlocal taken
            await anyio.lowlevel.checkpoint()
            taken += 1
            return b"x" * 65536

    connection = HttpConnection(Endless([]))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.read)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert taken == 2


async def test_gateway_that_closes_ends_its_connections() -> None:
    capture = CannedCapture([anyio.sleep_forever, TEXT])
    stream = None
    async with serve(capture) as port:
        stream = await connect(port)
        await stream.send(post())
        await capture.begun.wait()
    assert await read_all(stream) == b""
    await stream.aclose()
