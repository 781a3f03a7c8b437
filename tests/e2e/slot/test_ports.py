"""Ports in a slot that lead to the driver: `listen(port=…)` and `expose`."""

from __future__ import annotations

import errno
import signal
import socket
import subprocess
import sys
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


MANY_CLIENTS = """
import socket, sys
clients = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(200)]
for number, client in enumerate(clients):
    client.sendall(b"%d" % number)
    client.shutdown(socket.SHUT_WR)
assert all(client.recv(10) == b"%d" % number for number, client in enumerate(clients))
"""


async def test_listen_carries_many_connections_at_once(slot: Slot) -> None:
    async with slot.listen(port=0) as listener, anyio.create_task_group() as tasks:
        client = await slot.spawn(["python3", "-c", MANY_CLIENTS, str(listener.port)])
        accepted = [await listener.accept() for _ in range(200)]
        for stream in accepted:
            tasks.start_soon(echo, stream)
        result = await client.wait(60)
        assert result is not None
        assert result.ok, await client.output(stream="stderr")


async def test_listen_reports_a_client_that_has_gone(slot: Slot) -> None:
    code = CLIENT + "client.recv(1)\nsys.exit()"
    async with slot.listen(port=0) as listener:
        await slot.spawn(["python3", "-c", code, str(listener.port)])
        async with await listener.accept() as stream:
            with anyio.fail_after(60), pytest.raises(anyio.BrokenResourceError):
                while True:
                    await stream.send(DATA)
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()


DRIVER = """
import time
from hermes_exec import SandboxPool
with SandboxPool("local") as pool, pool.slot() as slot, slot.listen(port=0, shared_loopback=True) as listener:
    print(listener.port, flush=True)
    time.sleep(1000)
"""


async def test_listen_ends_with_its_driver() -> None:
    async with await anyio.open_process([sys.executable, "-c", DRIVER], stderr=subprocess.DEVNULL) as driver:
        assert driver.stdout is not None
        port = int(await driver.stdout.receive())
        async with await anyio.connect_tcp("127.0.0.1", port) as client:
            driver.send_signal(signal.SIGKILL)
            with anyio.fail_after(60), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await client.receive()
        with anyio.fail_after(60), pytest.raises(OSError, match="failed"):
            while True:  # the runner ends connections and listeners in no order
                async with await anyio.connect_tcp("127.0.0.1", port):
                    await anyio.sleep(0.01)


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
