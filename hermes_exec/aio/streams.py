"""Byte streams that accept writes without waiting and from any thread."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Protocol, runtime_checkable

import anyio
from anyio.abc import ByteStream

from hermes_exec.aio.loop import asyncio_loop

# Not the obvious code: see docs/why-not-obvious.md ("Read buffers below 128 KiB").
READ_BYTES = 120 << 10
"""Most bytes of one read. A buffer of 128 KiB or more makes malloc map memory each time, which takes 10 µs."""
# Not the obvious code: see docs/why-not-obvious.md ("Small pieces joined").
JOINED_BYTES = 4096
"""Up to this size, joining the pending pieces costs less than writing them one by one."""


@runtime_checkable
class NowaitStream(Protocol):
    """A stream whose writes never wait: it keeps bytes that the system cannot accept yet, and flushes them later."""

    def send_nowait(self, data: bytes) -> None:
        """Send bytes or keep them for later, from any thread.

        Raises:
            anyio.BrokenResourceError: If the stream is gone.
        """

    def queue_nowait(self, data: bytes) -> None:
        """Keep bytes for the next send."""

    @property
    def pending_bytes(self) -> int:
        """The number of bytes kept."""

    async def drain(self) -> None:
        """Wait until all kept bytes are sent."""

    async def receive(self, max_bytes: int = READ_BYTES) -> bytes:
        """Receive like anyio's ByteStream."""

    def deliver(self, sink: Callable[[bytes], None], on_end: Callable[[Exception], None]) -> bool:
        """Pass all incoming bytes from the event loop to `sink`, without waking a task.

        `on_end` is called once, with the exception that `receive` or `sink` would have raised.

        Returns:
            False if the loop cannot do that. Nothing has changed then; use `receive`.
        """

    async def aclose(self) -> None:
        """Close like anyio's ByteStream."""


class _Outbox:
    """Bytes that wait to be written, in order."""

    def __init__(self) -> None:
        self.parts: deque[bytes | memoryview] = deque()
        self.size = 0

    def add(self, data: bytes | memoryview) -> None:
        if data:
            self.parts.append(data)
            self.size += len(data)

    def take(self) -> bytes:
        """Remove and return all bytes."""
        if not self.parts:
            return b""
        data = b"".join(self.parts)
        self.parts.clear()
        self.size = 0
        return data

    def gather(self, limit: int = 64) -> list[bytes | memoryview]:
        return list(islice(self.parts, limit))

    def remove(self, count: int) -> None:
        self.size -= count
        while count:
            first = self.parts.popleft()
            if count < len(first):
                self.parts.appendleft(memoryview(first)[count:])
                return
            count -= len(first)


class FdStream(ByteStream):
    """A byte stream that owns one or two non-blocking file descriptors (a socket, or two pipe ends).

    Reading belongs to one task. Writing is thread safe: no other writer can tear a frame.
    """

    def __init__(self, read_fd: int, write_fd: int | None = None) -> None:
        self._read_fd = read_fd
        self._write_fd = read_fd if write_fd is None else write_fd
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._lock = threading.Lock()
        self._outbox = _Outbox()
        self._draining = anyio.Lock()
        self._stop_delivery: Callable[[], None] | None = None
        self._closed = False
        self._broken = False
        self._eof_sent = False

    async def receive(self, max_bytes: int = READ_BYTES) -> bytes:
        """Wait for bytes and return them.

        Raises:
            anyio.EndOfStream: If the other side has closed.
            anyio.ClosedResourceError: If this stream is closed.
        """
        self._check_open()
        while True:
            # Waiting first lets other tasks run, even if a peer never stops sending.
            await anyio.wait_readable(self._read_fd)
            # Another task may have closed the stream, and the descriptor may belong to another file by now.
            self._check_open()
            if data := self._read(max_bytes):
                return data

    def _read(self, max_bytes: int) -> bytes:
        """Return the bytes that can be read without waiting, or b""."""
        try:
            data = os.read(self._read_fd, max_bytes)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise anyio.BrokenResourceError from error
        if not data:
            raise anyio.EndOfStream
        return self.unwrap(data)

    def unwrap(self, data: bytes) -> bytes:
        """Return the stream's own bytes in `data`: all of them, unless a subclass frames them."""
        return data

    def deliver(self, sink: Callable[[bytes], None], on_end: Callable[[Exception], None]) -> bool:
        """Deliver like `NowaitStream.deliver`, on asyncio only."""
        loop = asyncio_loop()
        if loop is None:
            return False
        if self._closed:
            raise anyio.ClosedResourceError

        def stop() -> None:
            self._stop_delivery = None
            loop.remove_reader(self._read_fd)

        def close() -> None:
            stop()
            loop.call_soon_threadsafe(on_end, anyio.ClosedResourceError())

        def readable() -> None:
            try:
                if data := self._read(READ_BYTES):
                    sink(data)
            except Exception as error:  # noqa: BLE001 -- passed to `on_end`
                if self._stop_delivery is not None:
                    stop()
                    on_end(error)

        self._stop_delivery = close
        loop.add_reader(self._read_fd, readable)
        return True

    async def send(self, item: bytes) -> None:
        """Send all bytes. If this is cancelled, a later send or drain sends the rest."""
        self.send_nowait(item)
        await self.drain()

    def send_nowait(self, data: bytes) -> None:
        """Send the bytes that the system accepts at once and keep the rest; thread safe."""
        with self._lock:
            self._check()
            if self._outbox.size + len(data) > JOINED_BYTES:
                self._outbox.add(data)
                self._flush()
                return
            data = self._outbox.take() + data
            try:
                sent = os.write(self._write_fd, data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._broken = True
                raise anyio.BrokenResourceError from error
            self._outbox.add(data[sent:])

    def queue_nowait(self, data: bytes) -> None:
        """Keep bytes for the next send, so that both cost one system call; thread safe."""
        with self._lock:
            self._outbox.add(data)

    @property
    def pending_bytes(self) -> int:
        """The number of bytes that wait to be written."""
        return self._outbox.size

    async def drain(self) -> None:
        """Wait until all bytes are written."""
        async with self._draining:
            while self._outbox.size:
                with self._lock:
                    self._check()
                    self._flush()
                    if not self._outbox.size:
                        return
                await anyio.wait_writable(self._write_fd)

    def _check_open(self) -> None:
        if self._closed:
            raise anyio.ClosedResourceError

    def _check(self) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        if self._broken:
            raise anyio.BrokenResourceError

    def _flush(self) -> None:
        try:
            while self._outbox.size:
                self._outbox.remove(os.writev(self._write_fd, self._outbox.gather()))
        except BlockingIOError:
            return
        except OSError as error:
            self._broken = True
            raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        """Close the writing side: a separate descriptor, or one half of a socket."""
        await self.drain()
        with self._lock:
            if self._closed or self._eof_sent:
                return
            self._eof_sent = self._broken = True
            if self._write_fd != self._read_fd:
                os.close(self._write_fd)
                return
            with socket.socket(fileno=os.dup(self._write_fd)) as half, contextlib.suppress(OSError):
                half.shutdown(socket.SHUT_WR)

    def detach(self) -> int:
        """Return the descriptor for a new owner; this stream counts as closed."""
        with self._lock:
            self._check()
            self._closed = True
            return self._read_fd

    async def aclose(self) -> None:
        """Close both sides. A waiting `receive` raises ClosedResourceError."""
        self.close_now()
        await anyio.lowlevel.checkpoint()

    def close_now(self) -> None:
        """Close without waiting, from any thread. Repeated calls do nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._stop_delivery is not None:
                # Outside of its loop, nothing is delivered.
                with contextlib.suppress(RuntimeError):
                    self._stop_delivery()
            fds = {self._read_fd} if self._eof_sent else {self._read_fd, self._write_fd}
            for fd in fds:
                # Outside of an event loop, no task waits for the descriptor.
                with contextlib.suppress(anyio.NoEventLoopError):
                    anyio.notify_closing(fd)
                os.close(fd)


class QueuedStream:
    """Any anyio byte stream with the writes of a NowaitStream, from the event loop only."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._outbox = _Outbox()
        self._sending = anyio.Lock()
        self._torn = False

    def send_nowait(self, data: bytes) -> None:
        """Keep bytes until the next drain."""
        self._outbox.add(data)

    queue_nowait = send_nowait

    @property
    def pending_bytes(self) -> int:
        """The number of bytes that wait to be written."""
        return self._outbox.size

    async def drain(self) -> None:
        """Send the kept bytes. Cancelling this may tear a frame; nothing can be sent afterwards."""
        async with self._sending:
            while self._outbox.size:
                if self._torn:
                    raise anyio.BrokenResourceError
                data = b"".join(self._outbox.gather())
                self._torn = True
                await self._stream.send(data)
                self._torn = False
                self._outbox.remove(len(data))

    async def receive(self, max_bytes: int = READ_BYTES) -> bytes:
        """Receive like anyio's ByteStream."""
        return await self._stream.receive(max_bytes)

    def deliver(self, sink: Callable[[bytes], None], on_end: Callable[[Exception], None]) -> bool:
        """Return False: this stream cannot deliver from the event loop."""
        return False

    async def aclose(self) -> None:
        """Close like anyio's ByteStream."""
        await self._stream.aclose()


def to_nowait(stream: ByteStream) -> NowaitStream:
    """Return the stream itself if its writes never wait, else wrap it in a `QueuedStream`."""
    return stream if isinstance(stream, NowaitStream) else QueuedStream(stream)
