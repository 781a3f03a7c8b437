"""A byte stream with faults of a schedule."""

from __future__ import annotations

import math

import anyio
from anyio.abc import ByteStream

from hermes_exec.aio.streams import READ_BYTES
from hermes_exec.testing.faults.schedule import Direction, StreamFate


class FaultyStream(ByteStream):
    """A wrapper around a stream that passes data as its schedule of faults allows."""

    def __init__(self, inner: ByteStream, fate: StreamFate) -> None:
        self._inner = inner
        self._fate = fate
        self._come = b""
        self._broken = False
        self._over = False
        """Whether the stream has ended."""
        self._eof_sent = False
        self._stalled_until = -math.inf

    async def receive(self, max_bytes: int = READ_BYTES) -> bytes:
        """Receive as anyio's `ByteStream` does. Raises BrokenResourceError after a cut."""
        direction = self._fate.receiving
        while True:
            self._check()
            if self._over:
                raise anyio.EndOfStream
            if not self._come:
                self._come = await self._inner.receive(max_bytes)
            size = await self._step(direction, min(len(self._come), max_bytes))
            piece, self._come = self._come[:size], self._come[size:]
            if piece and not direction.lost:
                return piece

    async def send(self, item: bytes) -> None:
        """Send as anyio's `ByteStream` does. Raises BrokenResourceError after a cut or the end of this direction."""
        view = memoryview(item)
        self._check()
        while view:
            size = await self._step(self._fate.sending, len(view))
            if self._eof_sent:
                raise anyio.BrokenResourceError
            if size and not self._fate.sending.lost:
                await self._inner.send(bytes(view[:size]))
            view = view[size:]

    async def _step(self, direction: Direction, available: int) -> int:
        step = direction.step(available)
        if step.both:
            self._stalled_until = max(self._stalled_until, anyio.current_time() + step.wait_s)
        elif step.wait_s:
            await anyio.sleep(step.wait_s)
        await anyio.sleep_until(self._stalled_until)
        if step.close:
            await self._close(direction)
        if step.cut:
            self._broken = True
            with anyio.CancelScope(shield=True):
                await self._inner.aclose()
        self._check()
        return step.size

    async def _close(self, direction: Direction) -> None:
        if direction is self._fate.sending:
            self._eof_sent = True
            await self._inner.send_eof()
        else:
            self._over, self._come = True, b""

    def _check(self) -> None:
        if self._broken:
            raise anyio.BrokenResourceError

    async def send_eof(self) -> None:
        """End this direction as anyio's `ByteStream` does."""
        if not self._eof_sent:
            self._eof_sent = True
            await self._inner.send_eof()

    async def aclose(self) -> None:
        """Close the wrapped stream."""
        self._broken = True
        await self._inner.aclose()
