"""Proxies and certificates of the environment, against real servers on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from hermes_agent.errors import ModelError
from hermes_agent.models.http.environment import Proxies, UnusableEnvironment
from hermes_exec.errors import ErrorCause
from tests.unit.agent.endpoint import Answer, Endpoint, endpoint
from tests.unit.agent.servers import http_proxy, make_authority
from tests.unit.agent.test_http_client import ask, client

pytestmark = [pytest.mark.anyio, pytest.mark.loops]
GOOD = Answer(200, b'{"n": 1}')
HOST = "model.test"
"""A host that DNS does not know, so that only a proxy reaches it."""
REFUSES = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno"
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUEST_METHOD")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def url_of(server: Endpoint, host: str) -> str:
    return server.base_url.replace("127.0.0.1", host)


@contextmanager
def tls_endpoint(directory: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[Endpoint]:
    """Serve with a certificate for these names, which the environment trusts."""
    authority = make_authority(directory, *names)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    with endpoint(reply=lambda _: GOOD, tls=authority.context) as server:
        yield server


async def test_certificate_of_environment_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tls_endpoint(tmp_path, monkeypatch, "127.0.0.1") as server:
        async with client(server.base_url) as opened:
            assert await ask(opened) + await ask(opened, body={"text": "x" * (2 << 20)}) == 2
        assert server.connections == 1


async def test_certificate_directory_of_environment_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    with tls_endpoint(tmp_path, monkeypatch, "127.0.0.1") as server:
        await anyio.run_process(["openssl", "rehash", str(tmp_path)])
        monkeypatch.delenv("SSL_CERT_FILE")
        monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
        async with client(server.base_url) as opened:
            assert await ask(opened) == 1


async def test_certificate_of_another_host_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tls_endpoint(tmp_path, monkeypatch, HOST) as server:
        async with client(server.base_url) as opened:
            with pytest.raises(ModelError, match=r"no connection.*IP address mismatch") as caught:
                await ask(opened)
    assert caught.value.cause == ErrorCause.CONFIG


async def test_server_without_tls_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(reply=lambda _: GOOD) as server:
        async with client(server.base_url.replace("http:", "https:"), wait_outage_s=0) as opened:
            with pytest.raises(ModelError, match=r"completed no request.*no connection"):
                await ask(opened)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("SSL_CERT_FILE", "/nowhere.pem", "the certificates of SSL_CERT_FILE or SSL_CERT_DIR cannot be loaded"),
        ("HTTPS_PROXY", "ftp://me:s3cret@h", "'ftp://h' is not the URL of a proxy, such as http://proxy:3128"),
        ("HTTPS_PROXY", "http://h:99999", "'http://h:99999' is not the URL of a proxy"),
        ("ALL_PROXY", "socks5://h", "a SOCKS proxy needs the package socksio"),
    ],
)
async def test_unusable_environment_is_an_error_of_configuration(
    variable: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    async with client(f"https://{HOST}/v1", retries=4, wait_outage_s=60) as opened:
        with pytest.raises(ModelError, match=says) as caught:
            await ask(opened)
    assert caught.value.cause == ErrorCause.CONFIG


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_http_goes_through_proxy(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(reply=lambda _: GOOD) as server, http_proxy() as proxy:
        monkeypatch.setenv(variable, f"me:p%40ss@127.0.0.1:{proxy.port}")
        async with client(url_of(server, HOST), api_key="k") as opened:
            assert await ask(opened) + await ask(opened) == 2
        assert (server.authorizations, server.connections) == (["Bearer k"] * 2, 1)
    (head,) = proxy.heads
    assert head.startswith(f"POST {url_of(server, HOST)}/sample HTTP/1.1\r\n".encode())
    assert b"Proxy-Authorization: Basic bWU6cEBzcw==\r\n" in head


@pytest.mark.parametrize("encrypted_proxy", [False, True])
async def test_https_goes_through_tunnel(
    encrypted_proxy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = make_authority(tmp_path, HOST, "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    with (
        endpoint(reply=lambda _: GOOD, tls=authority.context) as server,
        http_proxy(tls=authority.context if encrypted_proxy else None) as proxy,
    ):
        scheme = "https" if encrypted_proxy else "http"
        monkeypatch.setenv("HTTPS_PROXY", f"{scheme}://me:pass@127.0.0.1:{proxy.port}")
        async with client(url_of(server, HOST), api_key="k") as opened:
            assert await ask(opened) + await ask(opened, body={"text": "x" * (2 << 20)}) == 2
        assert (server.authorizations, server.connections) == (["Bearer k"] * 2, 1)
        port = int(server.base_url.split(":")[2].removesuffix("/v1"))
    (head,) = proxy.heads
    assert head.startswith(f"CONNECT {HOST}:{port} HTTP/1.1\r\n".encode())
    assert b"Proxy-Authorization: Basic bWU6cGFzcw==\r\n" in head
    assert b"Bearer" not in head


async def test_tunnel_that_a_proxy_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with http_proxy(refuses=REFUSES) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        async with client(f"https://{HOST}/v1") as opened:
            with pytest.raises(ModelError, match="the connection broke: 403 Forbidden"):
                await ask(opened)


async def test_proxy_that_is_away_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_proxy() as proxy:
        pass
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
    async with client(f"http://{HOST}/v1", wait_outage_s=0) as opened:
        with pytest.raises(ModelError, match=r"completed no request.*no connection"):
            await ask(opened)


async def test_redirect_to_another_host_chooses_its_own_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(reply=lambda _: GOOD) as target, http_proxy() as proxy:
        moved = Answer(307, b"", {"location": f"{url_of(target, HOST)}/moved"})
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        with endpoint(moved) as server:
            async with client(server.base_url) as opened:
                assert await ask(opened) == 1
        assert target.paths == ["/v1/moved"]
    assert len(proxy.heads) == 1


@pytest.mark.parametrize(
    ("environment", "direct", "proxied"),
    [
        ({}, ["http://a.b", "https://a.b"], []),
        (
            {"HTTP_PROXY": "p"},
            ["https://a.b", "http://localhost:80", "http://127.0.0.1:8", "http://::1"],
            ["http://a.b"],
        ),
        ({"HTTPS_PROXY": "p"}, ["http://a.b"], ["https://a.b"]),
        ({"ALL_PROXY": "p"}, ["https://localhost"], ["http://a.b", "https://a.b"]),
        ({"NO_PROXY": "*"}, ["http://a.b", "https://a.b"], []),
        ({"NO_PROXY": "b.c, x"}, ["http://b.c", "http://a.b.c", "http://x"], ["http://ab.c", "http://b.c.d"]),
        ({"NO_PROXY": ".b.c"}, ["http://a.b.c", "https://z.a.b.c"], ["http://b.c"]),
        ({"NO_PROXY": "*.b.c"}, ["http://a.b.c"], ["http://b.c", "http://ab.c"]),
        ({"NO_PROXY": "B.C"}, ["http://b.c"], []),
        ({"NO_PROXY": "b.c:81"}, ["http://b.c:81", "http://a.b.c:81"], ["http://b.c:80"]),
        ({"NO_PROXY": "https://b.c"}, ["https://b.c"], ["http://b.c"]),
        ({"NO_PROXY": "all://b.c"}, ["https://b.c", "http://b.c"], []),
        ({"NO_PROXY": "10.0.0.0/8"}, ["http://10.1.2.3"], ["http://11.1.2.3", "http://a.b"]),
        ({"NO_PROXY": "10.0.0.1"}, ["http://10.0.0.1:5"], ["http://10.0.0.2"]),
        ({"NO_PROXY": "10.0.0.1:5"}, ["http://10.0.0.1:5"], ["http://10.0.0.1:6"]),
        ({"NO_PROXY": "fd00::/8"}, ["http://fd00::5"], ["http://fe00::5"]),
        ({"NO_PROXY": "[fd00::1]"}, ["http://fd00::1"], ["http://fd00::2"]),
        ({"NO_PROXY": ",, /,a/b,http://[,:5,."}, [], ["http://a.b"]),
    ],
)
def test_choice_of_proxy(
    environment: dict[str, str], direct: list[str], proxied: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "NO_PROXY" in environment:
        environment = {"HTTP_PROXY": "p", "HTTPS_PROXY": "p", **environment}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    proxies = Proxies()

    def is_proxied(url: str) -> bool:
        scheme, _, rest = url.partition("://")
        host, colon, port = rest.rpartition(":")
        alone = not colon or host.endswith(":") or "::" in rest
        return proxies.find(scheme, rest if alone else host, 80 if alone else int(port)) is not None

    assert [url for url in direct if is_proxied(url)] == []
    assert [url for url in proxied if not is_proxied(url)] == []


def test_invalid_proxy_is_no_trouble_for_hosts_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "://")
    monkeypatch.setenv("NO_PROXY", "a.b")
    assert Proxies().find("http", "a.b", 80) is None
    with pytest.raises(UnusableEnvironment, match="is not the URL of a proxy"):
        Proxies().find("http", "b.c", 80)
