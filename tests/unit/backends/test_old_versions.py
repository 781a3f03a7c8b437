"""Clusters and clients that are too old are told apart."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from hermes_exec.backends.nomad.cluster import Cluster
from hermes_exec.backends.nomad.config import NomadConfig
from hermes_exec.errors import BackendUnavailable


class OldAgent(BaseHTTPRequestHandler):
    """Answers as an agent of Nomad 1.7 without jobs does."""

    def do_GET(self) -> None:
        """Answer a GET request."""
        about = {"config": {"Version": {"Version": "1.7.7"}}, "member": {}, "stats": {}}
        body = json.dumps(about if self.path.startswith("/v1/agent/self") else []).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def old_agent() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), OldAgent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_old_cluster_of_nomad(old_agent: str) -> None:
    pytest.importorskip("nomad")
    cluster = Cluster(NomadConfig(address=old_agent))
    with pytest.raises(BackendUnavailable, match=r"is of version 1\.7\.7: sandboxes need 1\.8 or newer"):
        cluster.is_open()
    cluster.close()


def test_a_client_that_is_too_old_for_modal() -> None:
    modal = pytest.importorskip("modal")
    from hermes_exec.backends.modal.errors import translate_errors

    with (
        pytest.raises(BackendUnavailable, match=r"this version of its client \(use 9\): pip install"),
        translate_errors(),
    ):
        raise modal.exception.VersionError("use 9")
