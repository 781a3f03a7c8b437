"""What does not answer in time may be busy: that is no property of it, and no fault of the configuration."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hermes_exec import SandboxPool
from hermes_exec.backends.nomad.cluster import Cluster
from hermes_exec.backends.nomad.config import NomadConfig
from hermes_exec.backends.singularity import engine as singularity
from hermes_exec.backends.singularity.errors import start_error
from hermes_exec.backends.ssh.config import SSHConfig, SSHHost
from hermes_exec.backends.ssh.errors import unavailable_error
from hermes_exec.backends.ssh.openssh import OpenSSH
from hermes_exec.backends.ssh.script import HostScript
from hermes_exec.errors import BackendUnavailable, ErrorCause, ExecError, QuotaExceeded

pytestmark = pytest.mark.anyio


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port of this host that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@contextmanager
def found_slow() -> Iterator[None]:
    with pytest.raises(BackendUnavailable) as caught:
        yield
    assert caught.value.cause is ErrorCause.INFRA
    assert caught.value.retryable


async def test_silent_docker_engine_is_retryable(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "engine"))
        listener.listen()
        pool = SandboxPool("docker", image="busybox", base_url=f"unix://{tmp_path}/engine", api_timeout_s=1)
        with found_slow():
            async with pool:
                pass


def test_silent_nomad_is_retryable(silent_port: int) -> None:
    cluster = Cluster(NomadConfig(address=f"http://127.0.0.1:{silent_port}", api_timeout_s=0.5))
    with found_slow():
        cluster.is_open()


def test_nomad_that_is_silent_to_a_stranger_has_not_refused_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOMAD_TOKEN", "ours")
    done = threading.Event()

    class Agent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("X-Nomad-Token") != "ours":
                done.wait(30)
                return
            body = json.dumps([] if "/jobs" in self.path else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name is the base class's
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Agent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            cluster = Cluster(NomadConfig(address=f"http://127.0.0.1:{server.server_port}", api_timeout_s=0.5))
            with found_slow():
                cluster.is_open()
        finally:
            done.set()
            server.shutdown()


def test_silent_ssh_host_is_retryable(silent_port: int) -> None:
    config = SSHConfig.model_validate({"hosts": ["127.0.0.1"], "connect_timeout_s": 1})
    transport = OpenSSH(config, SSHHost(host="127.0.0.1", port=silent_port))
    try:
        with found_slow():
            transport.run(HostScript("true"), b"", 10)
    finally:
        transport.close()


def test_ssh_host_that_refuses_is_a_matter_of_configuration() -> None:
    error = unavailable_error(SSHHost(host="a"), "Permission denied (publickey).")
    assert error.cause is ErrorCause.CONFIG
    assert not error.retryable


def test_silent_apptainer_is_retryable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "apptainer"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    monkeypatch.setattr(singularity, "ANSWER_S", 0.2)
    with found_slow():
        singularity.find_engine(str(slow))


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("FATAL:   while applying cgroups config: dbus: connection timed out", ExecError),
        ("FATAL:   container creation failed: mount overlay: cannot allocate memory", ExecError),
        ("FATAL:   failed to create user namespace: resource temporarily unavailable", ExecError),
        ("FATAL:   while setting up the overlay: no space left on device", QuotaExceeded),
    ],
)
def test_shortage_is_no_property_of_a_host_of_apptainer(log: str, kind: type[ExecError]) -> None:
    error = start_error(log)
    assert isinstance(error, kind)
    assert error.retryable
    assert error.cause in (ErrorCause.INFRA, ErrorCause.PROVIDER)
