"""Images without a real registry: policies, what is missing, the credentials that are sent."""

from __future__ import annotations

import json
import os
import socketserver
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from docker import DockerClient

from hermes_exec import SandboxPool
from hermes_exec.backends.base import LaunchSpec
from hermes_exec.backends.owner import own_labels
from hermes_exec.errors import ErrorCause, ImageError
from tests.e2e.backends.sandboxes import backend

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
Image = Callable[[str], str]


async def test_image_policy(docker_image: Image, engine: DockerClient) -> None:
    absent = "hermes-exec-test/absent:1"
    started = time.monotonic()
    never = backend(pull_policy="never")
    with pytest.raises(ImageError, match="hermes-exec-test/absent:1"):
        await never.check(LaunchSpec(image=absent))
    with pytest.raises(ImageError, match="never"):
        await never.launch(LaunchSpec(image=absent), own_labels("t"))
    assert time.monotonic() - started < 30
    await never.check(LaunchSpec(image=docker_image("busybox")))
    await never.aclose()


async def test_missing_image_is_fetched_from_a_registry_that_refuses(docker_image: Image, engine: DockerClient) -> None:
    missing = backend()
    with pytest.raises(ImageError, match=r"127\.0\.0\.1:9/absent"):
        await missing.launch(LaunchSpec(image="127.0.0.1:9/absent:1", pull_timeout_s=20), own_labels("t"))
    with pytest.raises(ImageError, match="cannot be fetched"):
        await missing.launch(LaunchSpec(image="sha256:" + "0" * 64), own_labels("t"))
    await missing.aclose()


class Outage(socketserver.BaseRequestHandler):
    """A registry that has no answer, or not now."""

    def handle(self) -> None:
        self.request.recv(4096)
        self.request.sendall(cast("Any", self.server).answer)


@pytest.mark.parametrize(
    "answer",
    [None, b"", b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"],
    ids=["nobody", "nothing", "unavailable"],
)
async def test_a_registry_that_is_not_to_be_had_is_its_providers_trouble(
    docker_image: Image, engine: DockerClient, answer: bytes | None
) -> None:
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Outage)
    cast("Any", server).answer = answer
    if answer is None:
        server.server_close()
    thread = threading.Thread(target=server.serve_forever) if answer is not None else threading.Thread()
    thread.start()
    try:
        async with SandboxPool("docker", image=f"127.0.0.1:{server.server_address[1]}/absent:1") as pool:
            with pytest.raises(ImageError, match="registry") as caught:
                await pool.acquire(timeout_s=120)
        assert (caught.value.cause, caught.value.retryable) == (ErrorCause.PROVIDER, True)
    finally:
        if answer is not None:
            server.shutdown()
            server.server_close()
        thread.join()


class Registry(BaseHTTPRequestHandler):
    """A registry that knows no image and asks for credentials."""

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "")
        cast("Any", self.server).seen.append(given)
        self.send_response(404 if given else 401)
        self.send_header("WWW-Authenticate", 'Basic realm="test"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *what: object) -> None:
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[tuple[str, list[str]]]:
    """The name of one, and what it is shown as credentials."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    seen: list[str] = []
    cast("Any", server).seen = seen
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", seen
    server.shutdown()
    server.server_close()
    thread.join()


CREDENTIAL_HELPER = """#!/bin/sh
env >"${0%/*}/told"
echo '{"Username": "me", "Secret": "hush"}'
"""
BASIC = f"Basic {b64encode(b'me:hush').decode()}"


@pytest.mark.parametrize("helper", [False, True], ids=["file", "helper"])
async def test_credentials_of_the_docker_configuration_reach_the_registry(
    *,
    helper: bool,
    registry: tuple[str, list[str]],
    tmp_path: Path,
    docker_image: Image,
    engine: DockerClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host, seen = registry
    config: dict[str, Any] = {"auths": {host: {"auth": b64encode(b"me:hush").decode()}}}
    if helper:
        (tmp_path / "docker-credential-told").write_text(CREDENTIAL_HELPER)
        (tmp_path / "docker-credential-told").chmod(0o755)
        config = {"credHelpers": {host: "told"}}
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        for name in ("OPENAI_API_KEY", "AWS_SESSION_TOKEN", "WANTED_TOKEN"):
            monkeypatch.setenv(name, f"value-of-{name}")
    (tmp_path / "config.json").write_text(json.dumps(config))
    docker_backend = backend(docker_config=str(tmp_path / "config.json"), helper_env=["WANTED_TOKEN"])
    try:
        with pytest.raises(ImageError, match=host) as caught:
            await docker_backend.launch(LaunchSpec(image=f"{host}/absent:1"), own_labels("t"))
        assert (caught.value.cause, caught.value.retryable) == (ErrorCause.CONFIG, False)
        assert BASIC in seen
    finally:
        await docker_backend.aclose()
    if helper:
        told = (tmp_path / "told").read_text()
        assert "value-of-WANTED_TOKEN" in told
        assert told.count("value-of") == 1, "credential helpers do not get the driver's keys"
