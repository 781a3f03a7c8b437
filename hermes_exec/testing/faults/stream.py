"""A byte stream on which a schedule of faults is carried out."""

from __future__ import annotations

import anyio
from anyio.abc import ByteStream

from hermes_exec.streams import READ_BYTES
from hermes_exec.testing.faults.schedule import Direction, StreamFate


class FaultyStream(ByteStream):
    """Passes on what another stream carries, as its fate allows."""

    def __init__(self, inner: ByteStream, fate: StreamFate) -> None:
        self._inner = inner
        self._fate = fate
        self._come = b""
        self._broken = False

    async def receive(self, max_bytes: int = READ_BYTES) -> bytes:
        """As anyio's ByteStream; BrokenResourceError after a cut."""
        self._check()
        if not self._come:
            self._come = await self._inner.receive(max_bytes)
        while not (size := await self._step(self._fate.receiving, min(len(self._come), max_bytes))):
            pass
        piece, self._come = self._come[:size], self._come[size:]
        return piece

    async def send(self, item: bytes) -> None:
        """As anyio's ByteStream; BrokenResourceError after a cut."""
        view = memoryview(item)
        self._check()
        while view:
            size = await self._step(self._fate.sending, len(view))
            if size and not self._fate.sending.lost:
                await self._inner.send(bytes(view[:size]))
            view = view[size:]

    async def _step(self, direction: Direction, available: int) -> int:
        step = direction.step(available)
        if step.wait_s:
            await anyio.sleep(step.wait_s)
        if step.cut:
            self._broken = True
            with anyio.CancelScope(shield=True):
                await self._inner.aclose()
        self._check()
        return step.size

    def _check(self) -> None:
        if self._broken:
            raise anyio.BrokenResourceError

    async def send_eof(self) -> None:
        """As anyio's ByteStream."""
        await self._inner.send_eof()

    async def aclose(self) -> None:
        """Close the stream below."""
        self._broken = True
        await self._inner.aclose()
