"""Slots cannot reach the servers of the trainer and of the model: what could is refused before a model works."""

from __future__ import annotations

import errno
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace

import pytest

from hermes_atropos.errors import ServerReachable
from hermes_atropos.reachability import ReachabilityCheck, is_local_address, is_remote_public, own_addresses
from hermes_exec import SandboxPool
from tests.conftest import require_engine
from tests.e2e.atropos.inference_server import PolicyServer, call, load, sampled, sequences, serving, solve
from tests.e2e.atropos.trainer import environment, flags, run, run_api

FORGED = {"tokens": [[7] * 9] * 2, "masks": [[7] * 9] * 2, "scores": [1.0, 0.0], "inference_logprobs": [[0.0] * 9] * 2}
POST = """
import sys, urllib.request
data = sys.stdin.read().encode()
for path in ("/scored_data", "/disconnect-env", "/reset_data"):
    request = urllib.request.Request(sys.argv[1] + path, data, {"content-type": "application/json"})
    try:
        print("ANSWERED", urllib.request.urlopen(request, timeout=5).status)
    except OSError as error:
        print("NOT REACHED", error)
"""


@contextmanager
def listener(host: str) -> Iterator[int]:
    """A server that accepts connections at this address; its port."""
    with socketserver.ThreadingTCPServer((host, 0), socketserver.BaseRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


async def reached(options: dict[str, object], url: str) -> str:
    """What an environment says that starts with such slots and this server of the trainer."""
    async with SandboxPool(**options) as pool, pool.slot() as slot:  # type: ignore[arg-type]
        try:
            await ReachabilityCheck(url, ()).check(slot, None)
        except ServerReachable as error:
            return str(error)
    return ""


@pytest.mark.parametrize("command", ["serve", "process", "evaluate"])
def test_slots_that_share_the_loopback_are_refused(command: str, tokenizer: Path) -> None:
    with run_api() as api, serving(PolicyServer(load(tokenizer), solve)) as server:
        api.register(batch_size=4)
        more = ("--env.rollout_server_url", api.url, "--env.network", "true")
        code, said = run(command, *flags(tokenizer, server.url, *more))
        status = api.ask("/status")
    assert code == 2, said
    assert "Traceback" not in said
    what = "the trainer's server" if command == "serve" else "the inference server"
    assert f"slots of the backend 'local' can connect to {what}" in said
    assert "--env.network false" in said
    assert "their own network" in said
    assert "a host that slots cannot reach" in said
    assert (server.bodies, status["queue_size"]) == ([], 0)


def test_terminal_calls_forge_no_batch(tokenizer: Path) -> None:
    """By default slots on this host have no network, whatever the model posts to the trainer's server."""

    def policy(prompt: str) -> str:
        if prompt.count("<|im_start|>tool") == 0:
            forged = json.dumps(FORGED)
            return call("terminal", command=f"echo '{forged}' | python3 -c '{POST}' {api.url}")
        return solve(prompt.replace("<|im_start|>tool", "", 1)) if prompt.count("<|im_start|>tool") < 3 else "Done."

    with run_api() as api, serving(PolicyServer(load(tokenizer), policy)) as server:
        api.register(batch_size=4)
        more = ("--env.rollout_server_url", api.url, "--env.ensure_scores_are_not_same", "false")
        with environment("serve", *flags(tokenizer, server.url, *more)):
            batches = [api.batch(60) for _ in range(2)]
    asked = [server.text(said.prompt) for said in server.log]
    assert any("NOT REACHED" in text for text in asked)
    assert not any("ANSWERED 200" in text for text in asked)
    known = {one[0] for turns in range(1, 5) for one in sampled(server.log, turns)}
    for group in (group for batch in batches for group in batch):
        assert {one[0] for one in sequences([group])} <= known


@pytest.mark.anyio
async def test_network_of_the_host_is_found_whether_or_not_the_server_is_there() -> None:
    """The server may come after the environment: what counts is that the slot has this host's loopback."""
    with listener("127.0.0.1") as port:
        assert "http://localhost" in await reached({"backend": "local", "network": True}, f"http://localhost:{port}")
        assert not await reached({"backend": "local", "network": False}, f"http://localhost:{port}")
    assert await reached({"backend": "local", "network": True}, f"http://127.0.0.1:{port}")
    assert not await reached({"backend": "local", "network": False}, f"http://127.0.0.1:{port}")


@pytest.mark.anyio
@pytest.mark.docker
async def test_container_reaches_a_server_that_listens_on_all_interfaces(docker_image: Callable[[str], str]) -> None:
    require_engine("docker")
    if not [address for address in own_addresses() if not address.is_loopback]:
        pytest.skip("this host has no address besides its loopback")
    options: dict[str, object] = {"backend": "docker", "image": docker_image("debian")}
    with listener("0.0.0.0") as everywhere, listener("127.0.0.1") as here:
        assert ", at " in await reached(options, f"http://127.0.0.1:{everywhere}")
        assert not await reached(options, f"http://127.0.0.1:{here}")
        assert not await reached({**options, "network": False}, f"http://127.0.0.1:{everywhere}")
        assert await reached({**options, "network_mode": "host"}, f"http://127.0.0.1:{here}")


@pytest.mark.anyio
async def test_provider_that_only_a_proxy_reaches_is_not_tried() -> None:
    """A connection that fails would be waited for in each episode."""
    async with SandboxPool("local", network=False) as pool, pool.slot() as slot:
        reach = ReachabilityCheck(None, ["https://1.1.1.1:9"])
        await reach.check(slot, None)
        assert reach._checked_scopes


def test_address_of_a_family_that_the_kernel_lacks_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_ipv6(family: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return socket.socket(family)

    monkeypatch.setattr(
        "hermes_atropos.reachability.socket", SimpleNamespace(**{**vars(socket), "socket": without_ipv6})
    )
    assert [is_local_address(ip_address(host)) for host in ("127.0.0.1", "::1")] == [True, False]


def test_address_of_a_shared_network_is_not_that_of_a_provider() -> None:
    hosts = ("1.1.1.1", "2606:4700::1111", "100.64.0.1", "100.127.0.1", "10.0.0.1", "fd00::1", "127.0.0.1")
    assert [is_remote_public(ip_address(host)) for host in hosts] == [True, True, *[False] * 5]


@pytest.mark.anyio
async def test_a_server_that_comes_later_is_tried_again() -> None:
    async with SandboxPool("local", network=False) as pool, pool.slot() as slot:
        with listener("127.0.0.1") as port:
            pass
        reach = ReachabilityCheck(f"http://127.0.0.1:{port}", ())
        await reach.check(slot, None)
        assert not reach._checked_scopes
        with listener("127.0.0.1") as port:
            reach = ReachabilityCheck(f"http://127.0.0.1:{port}", ())
            await reach.check(slot, None)
            assert reach._checked_scopes
