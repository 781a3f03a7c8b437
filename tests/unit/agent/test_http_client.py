"""The HTTP client below models: what is on the wire, and how answers arrive, against real servers on loopback."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import anyio
import anyio.to_thread
import brotli
import pytest

from hermes_agent.errors import ModelError
from hermes_agent.models.endpoint import Endpoint
from hermes_exec.errors import ConfigError, ErrorCause
from tests.unit.agent.endpoint import Answer, endpoint
from tests.unit.agent.servers import RawServer, chunked, raw_server, read_head, read_request, serving

pytestmark = [pytest.mark.anyio, pytest.mark.loops]
BODY = b'{"n": 1}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
WHOLE = HEAD + b"content-length: 8\r\n\r\n" + BODY
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_agent.models.endpoint._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("hermes_agent.models.pace._FIRST_PROBE_S", 0.01)


@asynccontextmanager
async def client(base_url: str, **options: Any) -> AsyncIterator[Endpoint]:
    opened = Endpoint(base_url, **{"retries": 0, "timeout_s": 10.0, **options})
    try:
        yield opened
    finally:
        with anyio.CancelScope(shield=True):
            await opened.aclose()


async def ask(opened: Endpoint, path: str = "/sample", body: dict[str, Any] | None = None) -> int:
    return int(await opened.post(path, body or {}, lambda answer: answer["n"]))


async def ask_once(server: RawServer, **options: Any) -> int:
    async with client(server.url, **options) as opened:
        return await ask(opened)


def headers_of(request: bytes) -> dict[str, str]:
    head = request.split(b"\r\n\r\n")[0].decode()
    return dict(line.split(": ", 1) for line in head.split("\r\n")[1:])


def redirect(status: int, location: str, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Moved", f"location: {location}", *headers, "content-length: 2", "", "no"]
    return "\r\n".join(lines).encode()


async def test_request_names_client_and_key() -> None:
    with raw_server(WHOLE) as server:
        async with client(server.url + "/", api_key="k") as opened:
            assert await ask(opened, "sample") == 1
    assert server.requests[0].startswith(b"POST /v1/sample HTTP/1.1\r\n")
    assert server.requests[0].endswith(b"\r\n\r\n{}")
    assert headers_of(server.requests[0]) == {
        "Host": f"127.0.0.1:{server.port}",
        "Accept": "application/json",
        "Accept-Encoding": "gzip, deflate, br",
        "User-Agent": f"hermes-exec/{version('hermes-exec')}",
        "Authorization": "Bearer k",
        "Content-Type": "application/json",
        "Content-Length": "2",
    }


async def test_request_without_key_has_no_authorization() -> None:
    with raw_server(WHOLE) as server:
        assert await ask_once(server, api_key="") == 1
    assert "Authorization" not in headers_of(server.requests[0])


async def test_headers_of_environment_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-2")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Team: rl\nauthorization: Other key\nnothing")
    with raw_server(WHOLE) as server:
        assert await ask_once(server, api_key="k") == 1
    sent = headers_of(server.requests[0])
    assert (sent["Openai-Organization"], sent["Openai-Project"]) == ("org-1", "proj-2")
    assert (sent["X-Team"], sent["Authorization"]) == ("rl", "Other key")


@pytest.mark.parametrize("key", ["secret-key-1\n", " secret-key-1", "secret\r\nx: y", "secret-schlüssel"])
def test_key_that_no_header_can_hold_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="api_key has a character") as caught:
        Endpoint("http://h/v1", api_key=key)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://a..b/v1", f"http://{'a' * 64}.b/v1"])
def test_host_that_dns_cannot_hold_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the URL of an endpoint"):
        Endpoint(url)


async def test_path_is_quoted() -> None:
    with raw_server(WHOLE) as server:
        async with client(server.url + "/ä b%20c", api_key="k") as opened:
            assert await ask(opened) == 1
    assert server.requests[0].startswith(b"POST /v1/%C3%A4%20b%20c/sample HTTP/1.1\r\n")


async def test_address_of_version_6() -> None:
    requests: list[bytes] = []

    def serve(connected: socket.socket) -> None:
        requests.append(read_request(connected))
        connected.sendall(WHOLE)

    with serving(serve, "::1") as port:
        async with client(f"http://[::1]:{port}/v1") as opened:
            assert await ask(opened) == 1
    assert headers_of(requests[0])["Host"] == f"[::1]:{port}"


@pytest.mark.parametrize("status", [307, 308])
async def test_redirect_repeats_request(status: int) -> None:
    with raw_server(redirect(status, "../other?x=1"), WHOLE) as server:
        async with client(server.url, api_key="k") as opened:
            assert await ask(opened, body={"a": 1}) == 1
    first, second = server.requests
    assert second == first.replace(b"/v1/sample", b"/other?x=1")
    assert server.connections == 1


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_redirect_of_other_kind_becomes_get(status: int) -> None:
    with raw_server(redirect(status, "/login"), WHOLE) as server:
        assert await ask_once(server, api_key="k") == 1
    assert server.requests[1].startswith(b"GET /login HTTP/1.1\r\n")
    assert not {"Content-Length", "Content-Type"} & headers_of(server.requests[1]).keys()


async def test_redirect_to_another_server_takes_no_key() -> None:
    with raw_server(WHOLE) as other, raw_server(redirect(307, f"http://127.0.0.1:{other.port}/x")) as server:
        assert await ask_once(server, api_key="k") == 1
    assert "Authorization" in headers_of(server.requests[0])
    assert "Authorization" not in headers_of(other.requests[0])
    assert headers_of(other.requests[0])["Host"] == f"127.0.0.1:{other.port}"
    assert other.requests[0].endswith(b"{}")


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([redirect(307, "/again")] * 21, "the connection broke: it redirects more than 20 times"),
        ([redirect(307, "ftp://h/x")], "the connection broke: it redirects to 'ftp://h/x'"),
        ([b"HTTP/1.1 304 Not Modified\r\n\r\n"], "HTTP 304: Not Modified"),
    ],
)
async def test_redirect_that_leads_nowhere(answers: list[bytes], says: str) -> None:
    with raw_server(*answers) as server, pytest.raises(ModelError, match=says):
        await ask_once(server)


async def test_cookies_of_a_server_are_sent_back() -> None:
    asks_for_cookie = redirect(307, "/v1/sample", "set-cookie: a=1; Path=/", "set-cookie: b=2; Path=/other")
    with raw_server(asks_for_cookie, WHOLE, WHOLE) as server:
        async with client(server.url) as opened:
            assert await ask(opened) + await ask(opened) == 2
    assert [headers_of(request).get("Cookie") for request in server.requests] == [None, "a=1", "a=1"]


def deflate_raw(content: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(content) + compressor.flush()


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "Deflate": deflate_raw,
    "br": brotli.compress,
    "identity": bytes,
    "": bytes,
}


@pytest.mark.parametrize(("encoding", "encode"), ENCODINGS.items(), ids=[name or "none" for name in ENCODINGS])
@pytest.mark.parametrize("size", [1, 3 << 20])
async def test_compressed_answer(encoding: str, encode: Callable[[bytes], bytes], size: int) -> None:
    content = encode(json.dumps({"n": 1, "text": "x" * size}).encode())
    pieces = [content[at : at + 5000] for at in range(0, len(content), 5000)]
    head = HEAD + f"content-encoding: {encoding}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    with raw_server(head + chunked(*pieces)) as server:
        assert await ask_once(server) == 1


@pytest.mark.parametrize(
    ("encoding", "content", "says"),
    [
        ("gzip", BODY, "incorrect header check"),
        ("gzip", gzip.compress(BODY, mtime=0)[:-12], "it is not JSON"),
        ("deflate", b"\xff" * 9, "invalid"),
        ("br", b"\xff" * 9, "the endpoint's answer cannot be used"),
        ("zstd", BODY, "its encoding was not asked for: 'zstd'"),
        ("gzip, br", BODY, "it has several encodings"),
    ],
)
async def test_answer_that_cannot_be_decompressed_is_lost(encoding: str, content: bytes, says: str) -> None:
    lost = HEAD + f"content-encoding: {encoding}\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content
    with raw_server(lost, WHOLE) as server:
        assert await ask_once(server, retries=1) == 1
    with raw_server(lost) as server, pytest.raises(ModelError, match=says):
        await ask_once(server)


@pytest.mark.parametrize("encode", [bytes, gzip.compress, brotli.compress])
async def test_answer_beyond_memory_is_lost(encode: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_agent.models.answer_body._LARGEST_ANSWER", 4 << 20)
    encoding = {"gzip": "gzip", "brotli": "br"}.get(encode.__module__, "identity")
    content = encode(b'"' + b" " * (8 << 20) + b'"')
    large = HEAD + f"content-encoding: {encoding}\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content
    with raw_server(large) as server, pytest.raises(ModelError, match="it is larger than 4,194,304 bytes"):
        await ask_once(server)


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED + chunked(b'{"n"', b": ", b"1}"),
        CHUNKED + b"8;name=value\r\n" + BODY + b"\r\n0\r\ntrailer: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + WHOLE,
        b"HTTP/1.1 200\r\ncontent-length: 8\r\n\r\n" + BODY,
    ],
    ids=["chunks", "extensions and trailers", "informational", "no reason"],
)
async def test_answer_in_every_form(answer: bytes) -> None:
    with raw_server(answer, answer) as server:
        async with client(server.url) as opened:
            assert await ask(opened) + await ask(opened) == 2
    assert server.connections == 1


async def test_answer_that_ends_with_the_connection() -> None:
    with raw_server(b"HTTP/1.0 200 OK\r\n\r\n" + BODY, closes=True) as server:
        assert await ask_once(server) == 1


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "Server disconnected without sending a response"),
        (b"HTTP/1.1 200 OK\r\ncontent-len", "Server disconnected without sending a response"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "illegal status line"),
        (HEAD + b"content-length: 9\r\n\r\n" + BODY, r"peer closed connection.*received 8 bytes, expected 9"),
        (CHUNKED + b"9\r\n" + BODY, "peer closed connection without sending complete message body"),
        (CHUNKED + b"zz\r\n" + BODY, "illegal chunk header"),
        (HEAD + b"x: " + b"y" * 200_000 + b"\r\n\r\n", "Receive buffer too long"),
        (HEAD + b"content-length: 8\r\ncontent-length: 9\r\n\r\n" + BODY, "conflicting Content-Length"),
    ],
)
async def test_broken_answer_is_lost(answer: bytes, says: str) -> None:
    with raw_server(answer, closes=True) as server, pytest.raises(ModelError, match=says) as caught:
        await ask_once(server)
    assert "the connection broke: " in str(caught.value)
    with raw_server(answer, WHOLE, closes=True) as server:
        assert await ask_once(server, retries=1) == 1


async def test_refusal_with_broken_body_has_its_status() -> None:
    with (
        raw_server(b"HTTP/1.1 422 No\r\ncontent-length: 99\r\n\r\nbad to", closes=True) as server,
        pytest.raises(ModelError, match="HTTP 422: bad to") as caught,
    ):
        await ask_once(server)
    assert (caught.value.status, caught.value.cause) == (422, ErrorCause.CONFIG)


async def test_refusal_is_read_in_its_charset() -> None:
    body = "模型不存在".encode("gbk")
    head = f"HTTP/1.1 404 X\r\ncontent-type: text/plain; charset=GBK\r\ncontent-length: {len(body)}\r\n\r\n"
    with raw_server(head.encode() + body) as server, pytest.raises(ModelError, match="HTTP 404: 模型不存在"):
        await ask_once(server)


async def test_refusal_before_the_request_is_read() -> None:
    """A server may refuse a large request after its head, and hang up."""

    def serve(connected: socket.socket) -> None:
        read_head(connected)
        connected.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        while connected.recv(1 << 20):
            pass

    with serving(serve) as port:
        async with client(f"http://127.0.0.1:{port}/v1") as opened:
            with pytest.raises(ModelError, match="HTTP 413: no"):
                await ask(opened, body={"text": "x" * (8 << 20)})


async def test_large_request_and_answer() -> None:
    text = "ä" * (4 << 20)
    with endpoint(reply=lambda request: Answer(200, json.dumps({"n": len(request["text"])}).encode())) as server:
        async with client(server.base_url) as opened:
            assert await ask(opened, body={"text": text}) == len(text)
            assert await ask(opened, body={"text": "x"}) == 1
        assert server.connections == 1


async def test_connection_that_a_server_closed_is_not_used_again() -> None:
    with raw_server(*[WHOLE] * 3, closes=True) as server:
        async with client(server.url) as opened:
            for number in range(3):
                assert await ask(opened) == 1
                # The end of the connection may not have arrived when the next request starts.
                await anyio.to_thread.run_sync(_wait_for, lambda number=number: server.connections > number)
                await anyio.sleep(0.02)
        assert server.connections == 3


def _wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


async def test_end_of_an_idle_connection_is_noticed_while_the_loop_was_busy() -> None:
    closed = threading.Event()

    def serve(connected: socket.socket) -> None:
        read_request(connected)
        connected.sendall(WHOLE)
        connected.close()
        closed.set()

    with serving(serve) as port:
        async with client(f"http://127.0.0.1:{port}/v1") as opened:
            for _ in range(2):
                assert await ask(opened) == 1
                assert closed.wait(10)  # blocks the loop, so that it cannot see the end of the connection
                closed.clear()


async def test_idle_connection_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_agent.models.http.connections._KEEPALIVE_S", 0.05)
    with raw_server(*[WHOLE] * 3) as server:
        async with client(server.url) as opened:
            for pause_s in (0.0, 0.2, 0.0):
                await anyio.sleep(pause_s)
                assert await ask(opened) == 1
        assert server.connections == 2


async def test_many_requests_at_once_have_a_connection_each() -> None:
    with endpoint(reply=lambda _: Answer(200, BODY)) as server:
        async with client(server.base_url) as opened:
            for _ in range(2):
                async with anyio.create_task_group() as tasks:
                    for _ in range(12):
                        tasks.start_soon(ask, opened)
        assert len(server.requests) == 24
        assert server.connections <= 12


@pytest.mark.parametrize("begun", [b"", HEAD, CHUNKED + b"8\r\n", CHUNKED + b"8\r\n" + BODY])
async def test_cancelled_request_closes_its_connection(begun: bytes) -> None:
    asked, ended = threading.Event(), threading.Event()

    def serve(connected: socket.socket) -> None:
        read_request(connected)
        connected.sendall(begun)
        asked.set()
        assert connected.recv(1) == b""
        ended.set()

    with serving(serve) as port:
        async with client(f"http://127.0.0.1:{port}/v1") as opened:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, opened)
                assert await anyio.to_thread.run_sync(asked.wait, 10)
                await anyio.sleep(0.02)
                tasks.cancel_scope.cancel()
            assert await anyio.to_thread.run_sync(ended.wait, 10)


async def test_closed_endpoint_closes_connections_and_serves_again() -> None:
    with raw_server(WHOLE, WHOLE) as server:
        async with client(server.url) as opened:
            assert await ask(opened) == 1
            await opened.aclose()
            assert await ask(opened) == 1
        assert server.connections == 2


async def test_request_in_flight_fails_when_its_endpoint_is_closed() -> None:
    asked, release = threading.Event(), threading.Event()
    with raw_server([asked.set, release.wait, WHOLE], WHOLE) as server:
        async with client(server.url) as opened, anyio.create_task_group() as tasks:

            async def fail() -> None:
                with pytest.raises(ModelError, match="the connection broke"):
                    await ask(opened)

            tasks.start_soon(fail)
            assert await anyio.to_thread.run_sync(asked.wait, 10)
            await opened.aclose()
        release.set()
