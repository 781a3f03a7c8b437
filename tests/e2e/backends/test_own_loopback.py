"""Whether `slot.own_loopback` is true, as a listener in the slot shows: neither a neighbour nor the host reaches it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from hermes_exec import SandboxPool, Slot
from tests.engines.modal_server import Server as ModalServer
from tests.support.nomad_agent import Agent
from tests.support.sshd import Server

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:slots share the root:RuntimeWarning")]
Image = Callable[[str], str]
SERVE = "command -v httpd && exec httpd -f -p 127.0.0.1:{0}; exec python3 -m http.server {0} --bind 127.0.0.1"
ALONE, SEVERAL = {"slots_per_sandbox": 1, "max_sandboxes": 2}, {"slots_per_sandbox": 2, "max_sandboxes": 1}
OFF, SHARED = {"network": False}, {"slot_root": "shared"}


@pytest.fixture
def closed_port() -> int:
    """A port at which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def is_reached(slot: Slot, neighbour: Slot, port: int) -> bool:
    """Whether a neighbour or this host reaches a port on the slot's loopback."""
    await slot.spawn(SERVE.format(port))
    await slot.wait_for_port(port, 20)
    for connect in (lambda: neighbour.connect(port), lambda: anyio.connect_tcp("127.0.0.1", port)):
        try:
            connection = await connect()
        except OSError:
            continue
        await connection.aclose()
        return True
    return False


async def check(backend: str, options: dict[str, Any], port: int, *, own: bool) -> None:
    async with SandboxPool(backend, **options) as pool, pool.slots(2) as (slot, neighbour):
        assert (slot.own_loopback, neighbour.own_loopback) == (own, own), slot.isolation
        assert await is_reached(slot, neighbour, port) is not own


@pytest.mark.parametrize(("more", "own"), [({}, False), (OFF, True)])
async def test_local(more: dict[str, Any], own: bool, closed_port: int) -> None:
    await check("local", more, closed_port, own=own)


@pytest.mark.ssh
@pytest.mark.parametrize(("more", "own"), [({}, False), (OFF, True)])
async def test_ssh(more: dict[str, Any], own: bool, closed_port: int, ssh_server: Server) -> None:
    await check("ssh", {**ssh_server.options(), **more}, closed_port, own=own)


@pytest.mark.docker
@pytest.mark.parametrize(
    ("more", "own"),
    [
        (ALONE, True),
        ({**ALONE, "slot_root": "own"}, True),
        ({**ALONE, **OFF}, True),
        (SEVERAL, False),
        ({**SEVERAL, **OFF}, True),
        ({**SEVERAL, **SHARED}, False),
        ({**SEVERAL, **SHARED, "cap_drop": ["ALL"], **OFF}, False),
        ({**ALONE, "network_mode": "host"}, False),
        ({**SEVERAL, "network_mode": "host"}, False),
    ],
)
async def test_docker(more: dict[str, Any], own: bool, closed_port: int, docker_image: Image) -> None:
    await check("docker", {"image": docker_image("busybox"), **more}, closed_port, own=own)


@pytest.mark.docker
async def test_docker_in_the_network_of_another_container(closed_port: int, docker_image: Image) -> None:
    options: dict[str, Any] = {"image": docker_image("busybox"), **ALONE}
    async with SandboxPool("docker", **options) as pool, pool.slot() as slot:
        mode = f"container:{slot.sandbox}"
        async with SandboxPool("docker", network_mode=mode, **options) as other, other.slot() as guest:
            assert not guest.own_loopback
            assert await is_reached(guest, slot, closed_port)


@pytest.mark.singularity
@pytest.mark.parametrize(
    ("more", "own"),
    [
        (ALONE, False),
        ({**ALONE, **OFF}, True),
        (SEVERAL, False),
        ({**SEVERAL, **OFF}, True),
        ({**SEVERAL, **SHARED, **OFF}, True),
    ],
)
async def test_apptainer(more: dict[str, Any], own: bool, closed_port: int, singularity_image: Image) -> None:
    await check("singularity", {"image": singularity_image("busybox"), **more}, closed_port, own=own)


@pytest.mark.nomad
@pytest.mark.docker
@pytest.mark.parametrize(
    ("more", "own"),
    [
        (ALONE, True),
        (SEVERAL, False),
        ({**SEVERAL, **OFF}, False),
        ({**ALONE, "docker": {"network_mode": "host"}}, False),
    ],
)
async def test_nomad(
    more: dict[str, Any], own: bool, closed_port: int, nomad_agent: Agent, docker_image: Image
) -> None:
    options = nomad_agent.options(image=docker_image("busybox"), slot_root="shared", **more)
    await check("nomad", options, closed_port, own=own)


@pytest.mark.nomad
@pytest.mark.singularity
@pytest.mark.parametrize(("more", "own"), [(ALONE, False), (SEVERAL, False), ({**SEVERAL, **OFF}, True)])
async def test_nomad_with_apptainer(
    more: dict[str, Any], own: bool, closed_port: int, nomad_agent: Agent, singularity_image: Image
) -> None:
    options = nomad_agent.options(image=singularity_image("busybox"), driver="singularity", **more)
    await check("nomad", options, closed_port, own=own)


@pytest.mark.docker
@pytest.mark.parametrize(("more", "own"), [(ALONE, True), (SEVERAL, False), ({**SEVERAL, **OFF}, True)])
async def test_modal(
    more: dict[str, Any], own: bool, closed_port: int, modal_server: ModalServer, docker_image: Image
) -> None:
    await check("modal", {"image": docker_image("busybox"), **more}, closed_port, own=own)
