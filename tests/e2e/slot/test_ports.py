"""Ports in a slot that lead to the driver: `listen(port=…)` and `expose`."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute

from hermes_exec import ConfigError, SandboxPool, Slot, SlotClosed

pytestmark = [pytest.mark.anyio, pytest.mark.loops]
CLIENT = """
import socket, sys
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
"""
ECHO_CLIENT = f"""{CLIENT}
client.sendall(sys.stdin.buffer.read())
client.shutdown(socket.SHUT_WR)
while data := client.recv(65536):
    sys.stdout.buffer.write(data)
"""
DATA = bytes(range(256)) * 4096


@pytest.fixture
async def slot(anyio_backend: str) -> AsyncIterator[Slot]:
    """A slot on this machine with its own loopback."""
    async with SandboxPool("local", network=False) as pool, pool.slot() as slot:
        assert slot.own_loopback
        yield slot


@pytest.fixture
def closed_port() -> int:
    """A port of this host at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def echo(stream: ByteStream) -> None:
    async with stream:
        async for piece in stream:
            await stream.send(piece)


async def test_listen_carries_bytes_both_ways(slot: Slot) -> None:
    async with slot.listen(port=0) as listener, anyio.create_task_group() as tasks:

        async def serve() -> None:
            await echo(await listener.accept())

        for _ in range(2):
            tasks.start_soon(serve)
            answer = await slot.run(["python3", "-c", ECHO_CLIENT, str(listener.port)], stdin=DATA)
            assert answer.stdout_bytes == DATA, answer.stderr
    with pytest.raises(ConnectionAbortedError):
        await listener.accept()


async def test_listen_frees_its_port(slot: Slot) -> None:
    for port in [8099] * 20 + [80] * 2:
        async with slot.listen(port=port) as listener:
            assert listener.port == port
            with pytest.raises(OSError, match="in use") as caught:
                await slot.listen(port=port).__aenter__()
            assert caught.value.errno == errno.EADDRINUSE
            connecting = await slot.connect(port)
            accepted = await listener.accept()
        await accepted.send(b"still open")
        assert await connecting.receive() == b"still open"
        await connecting.aclose()
        await accepted.aclose()
        with pytest.raises(ConnectionRefusedError):
            await slot.connect(port)


async def test_listen_refuses_bad_arguments(slot: Slot) -> None:
    for bad in (-1, 65536, True, "80"):
        with pytest.raises(ConfigError, match="port must be"):
            slot.listen(port=bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="either"):
        slot.listen()
    with pytest.raises(ConfigError, match="either"):
        slot.listen("/tmp/here", port=1)


async def test_listen_refuses_shared_loopback(anyio_backend: str) -> None:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        with pytest.raises(ConfigError, match="shared_loopback"):
            slot.listen(port=0)
        with pytest.raises(ConfigError, match="shared_loopback"):
            slot.expose("127.0.0.1", 80)
        listening = slot.listen(port=0, shared_loopback=True)
        async with listening as listener, await anyio.connect_tcp("127.0.0.1", listener.port) as outside:
            await outside.send(b"from the host")
            async with await listener.accept() as stream:
                assert await stream.receive() == b"from the host"


async def test_reset_ends_listener_and_connections(slot: Slot) -> None:
    async with slot.listen(port=8099) as listener, slot.expose("127.0.0.1", 1) as exposed:
        await slot.spawn(["python3", "-c", f"{CLIENT}client.recv(1)", "8099"])
        stream = await listener.accept()
        await slot.reset()
        for call in (listener.accept, stream.receive):
            with pytest.raises(SlotClosed):
                await call()
        for port in (8099, exposed.port):
            with pytest.raises(ConnectionRefusedError):
                await slot.connect(port)
        async with slot.listen(port=8099):
            pass


async def test_expose_leads_to_a_service_of_the_driver(slot: Slot) -> None:
    service = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = service.extra(SocketAttribute.local_port)
    async with service, anyio.create_task_group() as tasks:
        tasks.start_soon(service.serve, echo)
        async with slot.expose("127.0.0.1", port, 8099) as exposed:
            assert exposed.port == 8099
            for _ in range(2):
                answer = await slot.run(["python3", "-c", ECHO_CLIENT, "8099"], stdin=DATA)
                assert answer.stdout_bytes == DATA, answer.stderr
        with pytest.raises(ConnectionRefusedError):
            await slot.connect(8099)
        tasks.cancel_scope.cancel()


async def test_expose_disconnects_clients_of_an_absent_service(slot: Slot, closed_port: int) -> None:
    async with slot.expose("127.0.0.1", closed_port) as exposed:
        answer = await slot.run(["python3", "-c", ECHO_CLIENT, str(exposed.port)])
        assert (answer.exit_code, answer.stdout) == (0, ""), answer.stderr
