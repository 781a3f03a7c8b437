"""Streams: writes that never wait and are never torn, from any thread; and streams that can only wait."""

from __future__ import annotations

import os
import socket
import threading
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream

from hermes_exec.aio.streams import FdStream
from hermes_exec.channel import Channel
from hermes_exec.channel.frames import FrameType
from tests.support.peer import Peer
from tests.support.waiting import until
from tests.unit.channel.test_channel import download, upload

pytestmark = [pytest.mark.anyio, pytest.mark.loops]


def pair() -> tuple[FdStream, FdStream]:
    ours, theirs = socket.socketpair()
    return FdStream(ours.detach()), FdStream(theirs.detach())


async def test_writes_from_many_threads_are_never_torn() -> None:
    ours, theirs = pair()
    lines = [bytes([65 + i]) * 5000 + b"\n" for i in range(8)]

    def write(line: bytes) -> None:
        for _ in range(50):
            ours.send_nowait(line)

    threads = [threading.Thread(target=write, args=(line,)) for line in lines]
    got = bytearray()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ours.pending_bytes > 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ours.drain)
        tasks.start_soon(ours.drain)
        while len(got) < 8 * 50 * 5001:
            got += await theirs.receive()
    assert sorted(bytes(got).splitlines(keepends=True)) == sorted(lines * 50)
    await ours.aclose()
    with pytest.raises(anyio.EndOfStream):
        await theirs.receive()
    await theirs.aclose()
    await theirs.aclose()


async def test_closed_and_broken() -> None:
    ours, theirs = pair()
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            with pytest.raises(anyio.ClosedResourceError):
                await ours.receive()

        tasks.start_soon(wait)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        ours.close_now()
    with pytest.raises(anyio.ClosedResourceError):
        ours.send_nowait(b"x")
    with pytest.raises(anyio.ClosedResourceError):
        await ours.receive()
    await theirs.aclose()
    ours, theirs = pair()
    await theirs.aclose()
    with pytest.raises(anyio.BrokenResourceError):
        ours.send_nowait(b"x")
    await anyio.to_thread.run_sync(ours.close_now)


async def delivered(sink_limit: int | None = None) -> tuple[bytearray, list[Exception], bool]:
    """What a stream delivers of 3 MiB and its end; the sink fails when it has had more than `sink_limit`."""
    ours, theirs = pair()
    got, endings, over = bytearray(), list[Exception](), anyio.Event()

    def sink(data: bytes) -> None:
        if sink_limit is not None and len(got) > sink_limit:
            raise ValueError("enough")
        got.extend(data)

    def ended(error: Exception) -> None:
        endings.append(error)
        over.set()

    began = ours.deliver(sink, ended)
    if began:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(theirs.send, bytes(3 << 20))
                await until(lambda: len(got) == 3 << 20 or bool(endings))
                tasks.cancel_scope.cancel()
            theirs.close_now()
            await over.wait()
            await anyio.sleep(0.01)
    await ours.aclose()
    theirs.close_now()
    return got, endings, began


async def test_delivery_without_a_task(anyio_backend: str) -> None:
    got, endings, began = await delivered()
    assert began == (anyio_backend == "asyncio")
    if began:
        assert (len(got), [type(error) for error in endings]) == (3 << 20, [anyio.EndOfStream])
        got, endings, _ = await delivered(sink_limit=100_000)
        assert 100_000 < len(got) < 3 << 20
        assert [str(error) for error in endings] == ["enough"]


async def test_a_closed_stream_delivers_nothing_says_so_and_leaves_its_number_free() -> None:
    for _ in range(3):
        ours, theirs = pair()
        got, endings = bytearray(), list[Exception]()
        began = ours.deliver(got.extend, endings.append)
        theirs.send_nowait(b"late")
        ours.close_now()
        if began:
            await until(partial(bool, endings))
        assert not got
        assert [type(error) for error in endings] == [anyio.ClosedResourceError] * began
        theirs.close_now()


async def test_two_pipes_and_half_close() -> None:
    (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()
    stream = FdStream(from_read, to_write)
    await stream.send(b"question")
    await stream.send_eof()
    assert os.read(to_read, 99) == b"question"
    assert os.read(to_read, 99) == b""
    os.write(from_write, b"answer")
    os.close(from_write)
    assert await stream.receive() == b"answer"
    with pytest.raises(anyio.EndOfStream):
        await stream.receive()
    await stream.aclose()
    os.close(to_read)


async def test_a_stream_that_is_closed_as_it_becomes_readable_takes_no_bytes_of_what_gets_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair()
    (tmp_path / "file").write_bytes(b"of somebody else")
    numbers = []

    async def woken(fd: int) -> None:
        await anyio.lowlevel.checkpoint()
        ours.close_now()
        file = os.open(tmp_path / "file", os.O_RDONLY)
        if file != fd:
            os.dup2(file, fd)
            os.close(file)
        numbers.append(fd)

    with monkeypatch.context() as patch:
        patch.setattr(anyio, "wait_readable", woken)
        with pytest.raises(anyio.ClosedResourceError):
            await ours.receive()
    (number,) = numbers
    assert os.read(number, 99) == b"of somebody else"
    os.close(number)
    theirs.close_now()


async def test_half_close_of_a_socket() -> None:
    ours, theirs = pair()
    await ours.send(b"question")
    await ours.send_eof()
    assert await theirs.receive() == b"question"
    with pytest.raises(anyio.EndOfStream):
        await theirs.receive()
    with pytest.raises(anyio.BrokenResourceError):
        await ours.send(b"more")
    await theirs.send(b"answer")
    assert await ours.receive() == b"answer"
    for stream in (ours, theirs):
        await stream.aclose()


class Plain(ByteStream):
    """A stream that has nothing but anyio's methods."""

    def __init__(self, stream: FdStream) -> None:
        self._stream = stream

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        return await self._stream.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        await self._stream.send(item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def test_channel_over_a_stream_that_can_only_wait() -> None:
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            peer = Peer(tasks)

            async def opener() -> Plain:
                return Plain(await peer.open())

            channel = await Channel.open(opener, lease_s=0.6)
            tasks.start_soon(channel.run)
            assert (await upload(channel, bytes(500_000)))["size"] == 500_000
            assert len(await download(channel, 500_000, window=1 << 16)) == 500_000
            await until(lambda: sum(frame.type == FrameType.KEEPALIVE for frame in peer.heard) > 2)
            peer.cut()
            assert await channel.call("echo", {"n": 1}) == {"n": 1}
            await channel.aclose()
            if peer.stream is not None:
                peer.stream.close_now()
            tasks.cancel_scope.cancel()
