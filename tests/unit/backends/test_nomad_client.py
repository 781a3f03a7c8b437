"""The client of a Nomad cluster: what each request carries."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from hermes_exec.backends.nomad.cluster import Cluster
from hermes_exec.backends.nomad.config import NomadConfig
from hermes_exec.backends.nomad.placement import nodes_of
from hermes_exec.backends.nomad.sandbox import purge, send_signal


@pytest.fixture
def requests_of_server() -> Iterator[tuple[str, list[str]]]:
    """The address of a server that answers each request with `{}`, and the requests that it got."""
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            paths.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 -- the names that http.server calls

        def log_message(self, *_: object) -> None:
            return None

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("by", ["option", "environment"])
def test_client_sends_its_namespace_with_every_request(
    by: str, requests_of_server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, paths = requests_of_server
    monkeypatch.delenv("NOMAD_NAMESPACE", raising=False)
    if by == "environment":
        monkeypatch.setenv("NOMAD_NAMESPACE", "team-a")
    cluster = Cluster(NomadConfig(address=address, namespace="team-a" if by == "option" else None))
    try:
        cluster.call_now(lambda client: client.job.register_job("j", {"Job": {}}))
        cluster.call_now(lambda client: client.evaluation.get_evaluation("e"))
        cluster.call_now(lambda client: client.evaluation.get_allocations("e"))
        cluster.call_now(lambda client: client.allocation.get_allocation("a"))
        cluster.call_now(lambda client: client.jobs.get_jobs(prefix="p", meta=True))
        cluster.call_now(lambda client: client.client.stat.stat_file("a", "f"))
        cluster.call_now(lambda client: send_signal(client, "a", "SIGCONT"))
        cluster.call_now(lambda client: purge(client, "j"))
        cluster.call_now(nodes_of)
        cluster.is_open()
    finally:
        cluster.close()
    assert len(paths) >= 10
    assert {path for path in paths if parse_qs(urlsplit(path).query).get("namespace") != ["team-a"]} == set()
