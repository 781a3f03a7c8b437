"""Connections and forwards of a slot."""

from __future__ import annotations

from array import array

import anyio
import pytest
from anyio.abc import ByteStream

from hermes_exec import ConfigError, Slot, SlotClosed

pytestmark = [pytest.mark.anyio, pytest.mark.loops]


ECHO_SERVER = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def serve(client):
    while data := client.recv(65536):
        client.sendall(data.upper())
    client.close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


async def server(slot: Slot) -> int:
    process = await slot.spawn(["python3", "-c", ECHO_SERVER])
    return int(await process.stdout.receive())


async def talk(stream: ByteStream, data: bytes) -> bytes:
    got = bytearray()

    async def send() -> None:
        await stream.send(data)
        await stream.send_eof()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        async for piece in stream:
            got += piece
    return bytes(got)


async def test_connect_and_forward(slot: Slot) -> None:
    port = await server(slot)
    stream = await slot.connect(port)
    async with stream:
        assert await talk(stream, b"abc" * 300_000) == b"ABC" * 300_000
    async with slot.forward(port) as forward:
        for _ in range(3):
            async with await anyio.connect_tcp("127.0.0.1", forward.port) as client:
                assert await talk(client, b"hello") == b"HELLO"
    with pytest.raises(OSError, match="failed"):
        await anyio.connect_tcp("127.0.0.1", forward.port)
    with pytest.raises(ConnectionRefusedError):
        await slot.connect(1)
    for bad in (0, 65536, True, "80"):
        with pytest.raises(ConfigError):
            await slot.connect(bad)  # type: ignore[arg-type]
    for nowhere in ("", "a\0b", 5, b"localhost"):
        with pytest.raises(ConfigError, match="host must be"):
            await slot.connect(port, nowhere)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="host must be"):
            slot.forward(port, host=nowhere)  # type: ignore[arg-type]


async def test_a_connection_has_one_receiver_at_a_time(slot: Slot) -> None:
    async with await slot.connect(await server(slot)) as stream, anyio.create_task_group() as tasks:
        tasks.start_soon(stream.receive)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await stream.receive()
        await stream.send(b"abc")
    with pytest.raises(ValueError, match="max_bytes"):
        await (await slot.connect(await server(slot))).receive(0)


async def test_errors_of_a_block_with_a_forward_are_passed_on(slot: Slot) -> None:
    with pytest.raises(LookupError):
        async with slot.forward(9):
            raise LookupError


async def test_a_reset_breaks_connections(slot: Slot) -> None:
    stream = await slot.connect(await server(slot))
    caught: list[BaseException] = []

    async def wait() -> None:
        try:
            await stream.receive()
        except SlotClosed as error:
            caught.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        await slot.reset()
    assert len(caught) == 1
    with pytest.raises(SlotClosed):
        await stream.send(b"x")
    await stream.aclose()


async def test_input_may_be_a_view_of_any_items(slot: Slot) -> None:
    view = memoryview(array("i", range(100_000)))
    process = await slot.spawn("wc -c", stdin=True)
    assert process.stdin is not None
    await process.stdin.send(view)  # type: ignore[arg-type]
    await process.stdin.aclose()
    assert await process.stdout.receive() == b"400000\n"
    async with await slot.connect(await server(slot)) as stream:
        assert await talk(stream, memoryview(array("H", [0x6161] * 3))) == b"AAAAAA"  # type: ignore[arg-type]
