"""Connections into a slot and out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from anyio.abc import ByteStream

from hermes_exec.errors import ConfigError, IsolationError, SlotClosed
from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.expect import equal, raises, that
from hermes_exec.testing.conformance.registry import NotGiven, check

if TYPE_CHECKING:
    from hermes_exec import Slot
    from hermes_exec.slot.network import SlotListener

MIB = bytes(range(256)) * (4 << 10)


async def _server(ctx: Context) -> int:
    process = await ctx.background("listen", 0)
    line = b""
    with anyio.fail_after(15):
        while b"\n" not in line:
            line += await process.stdout.receive()
    return int(line.rpartition(b":")[2])


@check("network", "helper")
async def check_connect(ctx: Context) -> None:
    """Connect gives a byte stream to a port inside the slot, both ways, with an end."""
    port = await _server(ctx)
    stream = await ctx.slot.connect(port)
    await stream.send(b"ping")
    equal(await stream.receive(), b"ping", "echo")
    await stream.send_eof()
    with raises(anyio.EndOfStream):
        await stream.receive()
    await stream.aclose()


@check("network", "helper")
async def check_connect_moves_much(ctx: Context) -> None:
    """8 MiB go both ways at once over one connection."""
    data = bytes(range(256)) * (8 << 12)
    stream = await ctx.slot.connect(await _server(ctx))
    received = bytearray()

    async def send() -> None:
        await stream.send(data)
        await stream.send_eof()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        async for piece in stream:
            received += piece
    equal(bytes(received), data, "bytes")
    await stream.aclose()


@check("network", "helper")
async def check_connect_to_a_closed_port(ctx: Context) -> None:
    """A port where nobody listens is a ConnectionError."""
    with raises(ConnectionError, OSError):
        stream = await ctx.slot.connect(1)
        await stream.send(b"x")
        await stream.receive()


@check("network", "helper")
async def check_connect_waits(ctx: Context) -> None:
    """Connect with wait_s gives a connection as soon as something listens, and is refused when nothing does in time."""
    server = await ctx.background("listen", 0)
    port = int((await server.stdout.receive()).rpartition(b":")[2])
    await server.kill()
    with raises(ConnectionRefusedError):
        await ctx.slot.connect(port, wait_s=0.1)
    with raises(TimeoutError):
        await ctx.slot.wait_for_port(port, 0.1)
    echoes = []

    async def talk() -> None:
        async with await ctx.slot.connect(port, wait_s=30) as stream:
            await stream.send(b"ping")
            echoes.append(await stream.receive())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(talk)
        await ctx.background("listen", port)
        await ctx.slot.wait_for_port(port, 30)
    equal(echoes, [b"ping"], "echo")


@check("network", "helper")
async def check_forward(ctx: Context) -> None:
    """Forward listens on the driver's loopback and carries connections into the slot."""
    port = await _server(ctx)
    for _ in range(3):
        async with ctx.slot.forward(port) as forward:
            for text in (b"one", b"two"):
                async with await anyio.connect_tcp("127.0.0.1", forward.port) as stream:
                    await stream.send(text)
                    equal(await stream.receive(), text, "echo")
        try:
            stream = await anyio.connect_tcp("127.0.0.1", forward.port)
        except OSError:
            return
        await stream.aclose()  # another program may have been given that port meanwhile
    raise AssertionError("a forward that was closed takes connections")


@check("network", "helper")
async def check_listen(ctx: Context) -> None:
    """A Unix socket of listen in the slot carries 1 MiB both ways, has an end, and is gone with its listener."""
    path = f"{ctx.slot.tmp}/conformance.sock"
    async with ctx.slot.listen(path) as listener, anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(_serve_one, listener)
            answer = await ctx.applet("talk", path, stdin=MIB)
            equal((answer.exit_code, answer.stdout_bytes), (0, MIB), "echo")
    that(not await ctx.slot.files.exists(path), "the socket is there after its listener")
    that((await ctx.applet("talk", path)).exit_code == 1, "a socket that is gone took a connection")


async def _echo(connection: ByteStream) -> None:
    async with connection:
        async for piece in connection:
            await connection.send(piece)


async def _serve_one(listener: SlotListener) -> None:
    await _echo(await listener.accept())


async def _talk(ctx: Context, listener: SlotListener, slot: Slot) -> None:
    """Send 1 MiB to a port of the slot and back."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_serve_one, listener)
        answer = await ctx.applet("talk", "127.0.0.1", listener.port, slot=slot, stdin=MIB)
        equal((answer.exit_code, answer.stdout_bytes), (0, MIB), "echo")


def _listen(slot: Slot, port: int) -> SlotListener:
    """Return a listener on a port of the slot, after the refusal where others share its loopback."""
    if slot.own_loopback:
        return slot.listen(port=port)
    with raises(ConfigError, about="shared_loopback"):
        slot.listen(port=port)
    return slot.listen(port=port, shared_loopback=True)


@check("network", "helper")
async def check_listen_on_a_port(ctx: Context) -> None:
    """A port of listen in the slot carries 1 MiB both ways, is refused where others share the loopback unless that is
    allowed, and is free when its listener has ended.
    """
    port = 0
    for _ in range(3):
        async with _listen(ctx.slot, port) as listener:
            equal(listener.port, port or listener.port, "port")
            port = listener.port
            await _talk(ctx, listener, ctx.slot)
    equal((await ctx.applet("dial", "127.0.0.1", port)).stdout, "ECONNREFUSED\n", "the port after its listener")


@check("network", "helper")
async def check_expose(ctx: Context) -> None:
    """A port of expose in the slot leads to a service on the driver's host."""
    service = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = service.extra(anyio.abc.SocketAttribute.local_port)
    shared = not ctx.slot.own_loopback
    async with service, anyio.create_task_group() as tasks:
        tasks.start_soon(service.serve, _echo)
        async with ctx.slot.expose("127.0.0.1", port, shared_loopback=shared) as exposed:
            for _ in range(2):
                answer = await ctx.applet("talk", "127.0.0.1", exposed.port, stdin=MIB)
                equal((answer.exit_code, answer.stdout_bytes), (0, MIB), "echo")
        refused = await ctx.applet("dial", "127.0.0.1", exposed.port)
        equal(refused.stdout, "ECONNREFUSED\n", "the port after its end")
        tasks.cancel_scope.cancel()


@check("network", "helper", own_pool=True, alone=True)
async def check_listen_without_network(ctx: Context) -> None:
    """With network=False a port of listen works. At the level namespaces it may be below 1024, and `kill -9 -1` does
    not end it. A reset ends it.
    """
    try:
        async with ctx.pool(network=False) as pool, pool.slot() as slot:
            own = slot.isolation.level == "namespaces"
            async with _listen(slot, 80 if own and slot.own_loopback else 0) as listener:
                await _talk(ctx, listener, slot)
                if own and ctx.facts.own_pids:
                    await ctx.applet("kill", -1, 9, slot=slot, timeout_s=20)
                    await _talk(ctx, listener, slot)
                await slot.reset()
                with raises(SlotClosed):
                    await listener.accept()
            async with _listen(slot, listener.port) as again:
                await _talk(ctx, again, slot)
    except (IsolationError, ConfigError) as error:
        raise NotGiven(f"network=False is refused here: {error}") from error


@check("network", "helper", own_pool=True)
async def check_no_network(ctx: Context) -> None:
    """With network=False a slot reaches nothing outside, and connect into it still works."""
    try:
        async with ctx.pool(network=False) as pool, pool.slot() as slot:
            listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            for host in ("127.0.0.1", "192.0.2.1", "1.1.1.1"):
                answer = await ctx.applet("dial", host, port if host == "127.0.0.1" else 80, slot=slot, timeout_s=20)
                that(answer.stdout.strip() not in ("ok", ""), f"{host} was reached")
            await listener.aclose()
            process = await ctx.background("listen", 0, slot=slot)
            line = await process.stdout.receive()
            stream = await slot.connect(int(line.rpartition(b":")[2]))
            await stream.send(b"in")
            equal(await stream.receive(), b"in", "echo")
            await stream.aclose()
    except (IsolationError, ConfigError) as error:
        raise NotGiven(f"network=False is refused here: {error}") from error
