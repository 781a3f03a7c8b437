"""One stream of a channel, from its handshake to its end: reading, flushing, keepalives and detection of silence."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from math import inf

import anyio
from anyio.abc import ByteStream

from hermes_exec.aio.streams import NowaitStream, QueuedStream, to_nowait
from hermes_exec.aio.tasks import PlainTaskGroup
from hermes_exec.channel.frames import HEADER, KEEPALIVE_FRAME, Frame
from hermes_exec.channel.handshake import FrameReader, Identity, SandboxFacts, shake_hands
from hermes_exec.channel.trace import ChannelTrace, trace_frame
from hermes_exec.errors import ChannelLost, ProtocolError

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 1.0
SILENT_INTERVALS = 3
ROUND_TRIP_BYTES_PER_S = 192 << 20
"""The rate that one conversation can reach on any link: its windows hold the bytes under way at this rate."""
MAX_WINDOW = 16 << 20
FREE_FRAMES = 1000
"""Frames without news that a sandbox may send, plus a few for each frame of the driver, before they count as an
attack.
"""
STREAM_ERRORS = (
    anyio.EndOfStream,
    anyio.ClosedResourceError,
    anyio.BrokenResourceError,
    anyio.BusyResourceError,
    OSError,
)

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that goes on while the machine is suspended, as that of a runner on another machine does."""
Opener = Callable[[], Awaitable[ByteStream]]


def boot_time() -> float:
    """Return the seconds since the machine was booted, with those in which it was suspended."""
    return time.clock_gettime(CLOCK)


class ChannelConnection:
    """One stream that is open for frames."""

    def __init__(
        self,
        stream: NowaitStream,
        reader: FrameReader,
        facts: SandboxFacts,
        interval_s: float,
        trace: ChannelTrace | None,
    ) -> None:
        self.facts = facts
        self._stream = stream
        self._reader = reader
        self._interval_s = interval_s
        self._trace = trace
        self._scope = anyio.CancelScope()
        self._flush = anyio.Event()
        self._last_keepalive = self._heard = time.monotonic()
        self._spoke_at, self._longest_silence_s = boot_time(), 0.0
        self._asked_at: float | None = None
        self._round_trip_s = inf
        self._wasted = 0
        self._caused = 0
        self._ended = False

    @classmethod
    async def open(
        cls, opener: Opener, identity: Identity, lease_s: float, interval_s: float, trace: ChannelTrace | None
    ) -> ChannelConnection:
        """Open a stream and shake hands. On failure the stream is closed.

        Raises:
            ChannelLost: If the stream cannot be opened.
            ProtocolError: If the sandbox breaks the protocol.
        """
        started_at = time.monotonic()
        stream = to_nowait(await opener())
        try:
            with anyio.fail_after(HANDSHAKE_TIMEOUT_S):
                reader, facts = await shake_hands(stream, identity, lease_s)
        except (*STREAM_ERRORS, TimeoutError) as error:
            await _close(stream)
            why = str(error) or type(error).__name__
            raise ChannelLost(f"the stream to the runner could not be opened: {why}") from error
        except BaseException:
            await _close(stream)
            raise
        if trace is not None:
            trace.on_connect(time.monotonic() - started_at)
        return cls(stream, reader, facts, interval_s, trace)

    async def serve(self, dispatch: Callable[[Frame], None]) -> None:
        """Pass each frame to `dispatch` until the stream is gone. ProtocolError and exceptions of `dispatch` pass
        through.
        """
        try:
            async with PlainTaskGroup() as tasks:
                tasks.start_soon(self._flush_always)
                tasks.start_soon(self._watch)
                self._keep_alive(time.monotonic())
                self._flush.set()
                with self._scope:
                    try:
                        await self._read(dispatch)
                    except STREAM_ERRORS as error:
                        logger.debug("stream ended: %r", error)
                tasks.cancel_scope.cancel()
        except Exception:
            await self.aclose()
            raise
        await self.aclose()

    async def _read(self, dispatch: Callable[[Frame], None]) -> None:
        reader = self._reader
        ended = anyio.Event()
        failure: Exception | None = None

        def take(data: bytes) -> None:
            self._dispatch_all(reader.decoder.feed(data), dispatch)

        def on_end(error: Exception) -> None:
            nonlocal failure
            failure = error
            ended.set()

        self._dispatch_all(reader.frames, dispatch)
        # Not the obvious code: see docs/why-not-obvious.md ("Data without waking a task").
        if self._stream.deliver(take, on_end):
            await ended.wait()
            if failure is not None:
                raise failure
        while not self._ended:
            take(await self._stream.receive())

    def _dispatch_all(self, frames: Iterable[Frame], dispatch: Callable[[Frame], None]) -> None:
        self._heard = time.monotonic()
        for frame in frames:
            if self._ended:
                return
            if self._trace is not None:
                self._trace.on_frame(trace_frame("<", *frame, self._heard))
            dispatch(frame)

    async def _flush_always(self) -> None:
        try:
            while True:
                await self._flush.wait()
                self._flush = anyio.Event()
                await self._stream.drain()
        except STREAM_ERRORS as error:
            logger.debug("stream cannot be written: %r", error)
            self._scope.cancel()

    async def _watch(self) -> None:
        """Give up a stream on which nothing arrives in spite of keepalives, unless the driver's own event loop was
        blocked.
        """
        silent = 0
        while silent < SILENT_INTERVALS:
            before = time.monotonic()
            await anyio.sleep(self._interval_s)
            now = time.monotonic()
            if isinstance(self._stream, QueuedStream):
                self._send_if_due(now)
                self._flush.set()
            late = now - before > 1.5 * self._interval_s
            silent = 0 if late or now - self._heard < self._interval_s else silent + 1
            if silent == SILENT_INTERVALS:
                # Read bytes that arrived while the loop was busy.
                await anyio.sleep(min(0.25, self._interval_s / 4))
                silent = 0 if time.monotonic() - self._heard < self._interval_s else silent
        logger.debug("no bytes for %.1f s: stream given up", time.monotonic() - self._heard)
        self._scope.cancel()

    def send_if_due(self, now: float) -> None:
        """Send a keepalive if one is due. Called from the keepalive thread, so only if writing is thread safe."""
        if not isinstance(self._stream, QueuedStream):
            self._send_if_due(now)

    @property
    def interval_s(self) -> float:
        """Seconds between keepalives."""
        return self._interval_s

    def _send_if_due(self, now: float) -> None:
        if not self._ended and now - self._last_keepalive >= self._interval_s:
            self._keep_alive(now)

    @property
    def silence_s(self) -> float:
        """The longest time that this driver sent no keepalive, also because its process or machine was suspended."""
        return max(self._longest_silence_s, boot_time() - self._spoke_at)

    def _keep_alive(self, now: float) -> None:
        self._last_keepalive = now
        self._longest_silence_s, self._spoke_at = self.silence_s, boot_time()
        self._asked_at = self._asked_at or now
        self._caused += 1
        if self._trace is not None:
            self._trace_all(KEEPALIVE_FRAME)
        try:
            self._stream.send_nowait(KEEPALIVE_FRAME)
        except STREAM_ERRORS:
            return  # the reader sees it too

    def on_keepalive(self) -> None:
        """Handle an answered keepalive: the shortest round trip is taken as the link's. The runner has outlived any
        silence.
        """
        self._longest_silence_s = 0.0
        if self._asked_at is not None:
            self._round_trip_s = min(self._round_trip_s, time.monotonic() - self._asked_at)
            self._asked_at = None

    def window(self, least: int) -> int:
        """Return the bytes that a sender may be ahead over this stream: `least`, plus the bytes under way at full
        speed.
        """
        on_the_way = 0.0 if self._round_trip_s == inf else self._round_trip_s * ROUND_TRIP_BYTES_PER_S
        return min(MAX_WINDOW, least + int(on_the_way))

    def write(self, frames: bytes) -> None:
        """Send whole frames, or keep them until the stream accepts them. A lost stream raises nothing here."""
        if self._trace is not None:
            self._trace_all(frames)
        self._caused += 1
        try:
            self._stream.send_nowait(frames)
        except STREAM_ERRORS:
            return  # the reader sees it too; conversations keep their frames to send them again
        if self._stream.pending_bytes:
            self._flush.set()

    def queue(self, frames: bytes) -> None:
        """Send whole frames together with the next write or keepalive."""
        if self._trace is not None:
            self._trace_all(frames)
        self._stream.queue_nowait(frames)

    def count_wasted_frame(self) -> None:
        """Count a frame without news.

        Raises:
            ProtocolError: If the sandbox sends too many of them.
        """
        self._wasted += 1
        if self._wasted > FREE_FRAMES + 16 * self._caused:
            raise ProtocolError("the sandbox floods the stream with frames without news")

    def _trace_all(self, frames: bytes) -> None:
        if self._trace is None:
            return
        offset, now, view = 0, time.monotonic(), memoryview(frames)
        while offset < len(frames):
            length, kind, flags, channel, number = HEADER.unpack_from(frames, offset)
            begin, offset = offset + HEADER.size, offset + HEADER.size + length
            self._trace.on_frame(trace_frame(">", kind, flags, channel, number, view[begin:offset], now))

    async def drain(self) -> None:
        """Wait until everything is written, for at most a second."""
        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            try:
                await self._stream.drain()
            except STREAM_ERRORS:
                logger.debug("the last frames could not be sent", exc_info=True)

    def stop(self) -> None:
        """Make `serve` return."""
        self._ended = True
        self._scope.cancel()

    async def aclose(self) -> None:
        """Close the stream."""
        self._ended = True
        await _close(self._stream)


async def _close(stream: NowaitStream) -> None:
    with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
        try:
            await stream.aclose()
        except STREAM_ERRORS:
            logger.debug("closing a stream failed", exc_info=True)
