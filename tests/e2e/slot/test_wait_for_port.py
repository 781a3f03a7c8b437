"""Connections that wait for a server which was just started."""

from __future__ import annotations

import socket

import anyio
import pytest

from hermes_exec import ConfigError, Slot, SlotClosed

pytestmark = [pytest.mark.anyio, pytest.mark.loops]


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


SERVE_LATE = "sleep 0.3; exec python3 -m http.server --bind 127.0.0.1 {port}"


async def test_connect_waits_for_a_server_that_was_just_started(slot: Slot, free_port: int) -> None:
    await slot.spawn(SERVE_LATE.format(port=free_port))
    async with await slot.connect(free_port, wait_s=30) as stream:
        await stream.send(b"GET / HTTP/1.0\r\n\r\n")
        assert (await stream.receive()).startswith(b"HTTP/1.0 200")


async def test_forward_waits_for_a_server_that_was_just_started(slot: Slot, free_port: int) -> None:
    await slot.spawn(SERVE_LATE.format(port=free_port))
    async with (
        slot.forward(free_port, wait_s=30) as forward,
        await anyio.connect_tcp("127.0.0.1", forward.port) as client,
    ):
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        assert (await client.receive()).startswith(b"HTTP/1.0 200")


async def test_wait_for_port_waits_for_a_server_that_was_just_started(slot: Slot, free_port: int) -> None:
    await slot.spawn(SERVE_LATE.format(port=free_port))
    await slot.wait_for_port(free_port, 30)
    await (await slot.connect(free_port)).aclose()


async def test_wait_for_a_port_that_nobody_opens_says_what_it_waited_for(slot: Slot, free_port: int) -> None:
    started = anyio.current_time()
    with pytest.raises(ConnectionRefusedError, match=f"listened in the slot within 0.3 s.*127.0.0.1:{free_port}"):
        await slot.connect(free_port, wait_s=0.3)
    with pytest.raises(TimeoutError, match=f"nothing listened on 127.0.0.1:{free_port} in the slot within 0.3 s"):
        await slot.wait_for_port(free_port, 0.3)
    assert anyio.current_time() - started >= 0.6
    with pytest.raises(TimeoutError):
        await slot.wait_for_port(free_port, 0)
    for never in (-1, "1", None, float("nan"), True):
        with pytest.raises(ConfigError, match="wait_s must be"):
            await slot.connect(free_port, wait_s=never)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="timeout_s must be"):
            await slot.wait_for_port(free_port, never)  # type: ignore[arg-type]


async def test_a_wait_for_a_port_ends_with_its_call_and_with_its_slot(slot: Slot, free_port: int) -> None:
    with anyio.move_on_after(0.2) as left:
        await slot.connect(free_port, wait_s=600)
    assert left.cancelled_caught
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            with pytest.raises(SlotClosed):
                await slot.wait_for_port(free_port, 600)

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        await slot.reset()
