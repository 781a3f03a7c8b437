"""Byte streams of the HTTP client on asyncio: bytes that arrive one by one are read together."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

from hermes_agent.models.http.client import HttpClient
from hermes_agent.models.http.sockets import SocketBackend, SocketStream, network_backend
from tests.unit.agent.servers import RawServer, Script, chunked, raw_server
from tests.unit.agent.test_http_client import CHUNKED, WHOLE

pytestmark = pytest.mark.anyio
MOST = 1 << 20


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def client(server: RawServer) -> AsyncIterator[HttpClient]:
    opened = HttpClient(server.url, authorization="", connect_timeout_s=5)
    try:
        yield opened
    finally:
        await opened.aclose()


@asynccontextmanager
async def stream(server: RawServer) -> AsyncIterator[SocketStream]:
    opened = await SocketBackend().connect_tcp("127.0.0.1", server.port)
    assert isinstance(opened, SocketStream)
    try:
        await opened.write(b"POST / HTTP/1.1\r\ncontent-length: 0\r\n")
        await opened.write(b"\r\n")
        yield opened
    finally:
        await opened.aclose()


def test_other_event_loops_have_the_streams_of_httpcore2() -> None:
    assert network_backend() is None


async def test_event_loop_of_asyncio_has_own_streams() -> None:
    assert isinstance(network_backend(), SocketBackend)


@pytest.mark.newest
async def test_the_event_loop_rests_while_a_stream_waits_for_an_answer() -> None:
    with raw_server([partial(time.sleep, 0.2), b"answer"]) as server:
        async with stream(server) as opened, anyio.create_task_group() as tasks:
            await opened.write(b"")  # the end of a request's body
            tasks.start_soon(opened.read, MOST)
            await anyio.wait_all_tasks_blocked()
            waits = asyncio.get_running_loop()._selector.get_map()  # type: ignore[attr-defined]
            connection = opened._transport.get_extra_info("socket").fileno()
            assert waits[connection].events == selectors.EVENT_READ


async def test_pieces_that_arrive_one_by_one_are_read_together() -> None:
    drips = [part for number in range(50) for part in (b"%02d" % number, partial(time.sleep, 0.002))]
    with raw_server([*drips, b"0\r\n\r\n"]) as server:
        async with stream(server) as opened:
            opened.collect(30.0)
            content, reads = b"", 0
            with anyio.fail_after(20):
                while not content.endswith(b"0\r\n\r\n"):
                    content += await opened.read(MOST)
                    reads += 1
    assert reads <= 2, "the first bytes may be there before the first read"
    assert content == b"".join(b"%02d" % number for number in range(50)) + b"0\r\n\r\n"


async def test_end_of_connection_ends_the_wait_for_more() -> None:
    with raw_server([b"part"], closes=True) as server:
        async with stream(server) as opened:
            opened.collect(30.0)
            with anyio.fail_after(10):
                assert [await opened.read(MOST), await opened.read(MOST)] == [b"part", b""]


async def test_pieces_wait_no_longer_than_asked() -> None:
    with raw_server([b"part"]) as server:
        async with stream(server) as opened:
            opened.collect(0.05)
            with anyio.fail_after(10):
                assert await opened.read(MOST) == b"part"


async def test_much_that_arrived_is_not_waited_with() -> None:
    with raw_server([b"x" * (4 << 20)]) as server:
        async with stream(server) as opened:
            opened.collect(30.0)
            size = 0
            with anyio.fail_after(20):
                while size < 4 << 20:
                    content = await opened.read(MOST)
                    assert len(content) < 2 << 20
                    size += len(content)
                    await anyio.sleep(0.005)


async def test_wait_of_one_answer_does_not_end_the_next() -> None:
    """The timer of a stream may fire while the next answer on its connection is awaited."""
    streamed: Script = [CHUNKED, partial(time.sleep, 0.1), b"1\r\na\r\n", partial(time.sleep, 0.02), chunked(b"b")]
    with raw_server(streamed, [partial(time.sleep, 0.3), WHOLE]) as server:
        async with client(server) as opened:
            first = await opened.post("/x", b"")
            first.collect(0.1)
            assert await first.read_some(MOST) == b"ab"
            await first.aclose()
            second = await opened.post("/x", b"")
            assert (second.status, await second.read_some(MOST)) == (200, b'{"n": 1}')
            await second.aclose()
        assert server.connections == 1


async def test_reset_connection_is_an_error_of_reading() -> None:
    import httpcore2

    async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import socket
        import struct

        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with await asyncio.start_server(reset, "127.0.0.1") as server:
        opened = await SocketBackend().connect_tcp("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(httpcore2.ReadError, match="reset"):
            await opened.read(MOST)
        await opened.aclose()
        with pytest.raises(httpcore2.WriteError):
            await opened.write(b"x" * MOST)
