"""One byte stream into a box, many conversations on it; a lost stream is replaced by another within the lease."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
from anyio.abc import ByteStream

from hermes_exec.channel.conversation import Conversation
from hermes_exec.channel.frames import HEADER, KEEPALIVE_FRAME, MORE, Frame, FrameType, encode, parse_json
from hermes_exec.channel.handshake import BoxFacts, FrameReader, Identity, shake_hands
from hermes_exec.channel.keepalive import HEART
from hermes_exec.streams import NowaitStream, QueuedStream, nowait
from hermes_exec.errors import ChannelLost, ExecError, OutcomeUnknown, ProtocolError

logger = logging.getLogger(__name__)

DEFAULT_WINDOW = 1 << 20
CANCEL_WAIT_S = 5.0
HANDSHAKE_S = 10.0
BACKOFF_S = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
SOFT_PENDING_BYTES = 1 << 20
MAX_BATCHED_ACKS = 64
STREAM_ERRORS = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)

Opener = Callable[[], Awaitable[ByteStream]]
State = Literal["open", "reconnecting", "lost", "closed"]
Trace = Callable[[str, int, int, int, int, float], None]
"""Called with direction (`>` or `<`), frame type, id, channel, payload bytes and time.monotonic() of each frame."""


class Channel:
    """Conversations with one box. `run` must be running for anything to be answered.

    `diagnose` is asked when a stream is lost: an exception that it returns (SandboxDied) ends the channel at once instead of
    trying until the lease is over. `on_lost` is called once, when the channel is gone for good.
    """

    def __init__(
        self,
        opener: Opener,
        *,
        lease_s: float,
        trace: Trace | None = None,
        diagnose: Callable[[], Awaitable[ExecError | None]] | None = None,
    ) -> None:
        self.state: State = "open"
        self.lost_reason: ExecError | None = None
        self.on_lost: Callable[[ExecError], None] | None = None
        self.calls = 0
        self.diagnose = diagnose
        self._opener = opener
        self._lease_s = lease_s
        self._interval_s = min(5.0, lease_s / 6)
        self._trace = trace
        self._identity = Identity()
        self._facts: BoxFacts | None = None
        self._reader: FrameReader | None = None
        self._stream: NowaitStream | None = None
        self._conversations: dict[int, Conversation] = {}
        self._abandoned: set[int] = set()
        self._next_id = 0
        self._acks = 0
        self._last_beat = 0.0
        self._heard = 0.0
        self._flush = anyio.Event()
        self._reopened = anyio.Event()
        self._done = anyio.Event()

    @classmethod
    async def open(
        cls,
        opener: Opener,
        *,
        lease_s: float,
        trace: Trace | None = None,
        diagnose: Callable[[], Awaitable[ExecError | None]] | None = None,
    ) -> Channel:
        """Open the first stream and claim the runner; ChannelLost or ProtocolError when that fails. No time limit of its own."""
        channel = cls(opener, lease_s=lease_s, trace=trace, diagnose=diagnose)
        await channel._connect()
        HEART.add(channel)
        return channel

    @property
    def facts(self) -> BoxFacts:
        """What the box said of itself when the stream was opened."""
        if self._facts is None:
            raise ChannelLost("the channel was never opened")
        return self._facts

    @property
    def boot_id(self) -> str:
        """The life of the runner that this channel belongs to."""
        return self.facts.boot_id

    async def _connect(self) -> None:
        stream = nowait(await self._opener())
        try:
            with anyio.fail_after(HANDSHAKE_S):
                self._reader, self._facts = await shake_hands(stream, self._identity, self._lease_s)
        except (*STREAM_ERRORS, TimeoutError) as error:
            await self._close_quietly(stream)
            raise ChannelLost(
                f"the stream to the runner could not be opened: {str(error) or type(error).__name__}"
            ) from error
        except BaseException:
            await self._close_quietly(stream)
            raise
        self._stream = stream
        self._heard = self._last_beat = time.monotonic()

    @staticmethod
    async def _close_quietly(stream: NowaitStream) -> None:
        with anyio.move_on_after(1, shield=True):
            try:
                await stream.aclose()
            except STREAM_ERRORS:
                logger.debug("closing a stream failed", exc_info=True)

    async def run(self) -> None:
        """Serve the channel until it is closed or lost; never raises for what a box does."""
        try:
            while self.state in ("open", "reconnecting"):
                await self._serve_stream()
                if self.state == "open":
                    self.state = "reconnecting"
                    await self._reconnect()
        except ProtocolError as error:
            self._lose(error)
        except BaseException:
            self._lose(ChannelLost("the channel was closed"))
            raise
        finally:
            HEART.remove(self)
            if self._stream is not None:
                await self._close_quietly(self._stream)
            self._done.set()

    async def _serve_stream(self) -> None:
        """Read frames until the stream is gone; ProtocolError passes through."""
        stream, reader = self._stream, self._reader
        if stream is None or reader is None:
            raise ChannelLost("the channel was never opened")
        protocol_error: ProtocolError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._flusher, stream)
            tasks.start_soon(self._watch, stream)
            try:
                while True:
                    self._dispatch(await reader.next())
                    while reader.frames:
                        self._dispatch(reader.frames.popleft())
                    self._heard = time.monotonic()
            except ProtocolError as error:
                protocol_error = error
            except STREAM_ERRORS as error:
                logger.debug("stream ended: %r", error)
            tasks.cancel_scope.cancel()
        await self._close_quietly(stream)
        if protocol_error is not None:
            raise protocol_error

    async def _flusher(self, stream: NowaitStream) -> None:
        try:
            while True:
                await self._flush.wait()
                self._flush = anyio.Event()
                await stream.drain()
        except STREAM_ERRORS:
            await self._close_quietly(stream)

    async def _watch(self, stream: NowaitStream) -> None:
        """Close a stream on which nothing comes although keepalives are sent, unless it was us who did not listen."""
        silent = 0
        while True:
            before = time.monotonic()
            await anyio.sleep(self._interval_s)
            now = time.monotonic()
            if isinstance(stream, QueuedStream):
                self.beat(now)
            blocked = now - before > 2 * self._interval_s
            silent = 0 if blocked or now - self._heard < self._interval_s * 1.5 else silent + 1
            if silent >= 3:
                logger.debug("nothing heard for %.1f s: stream given up", now - self._heard)
                await self._close_quietly(stream)
                return

    def beat(self, now: float) -> None:
        """Send a keepalive if one is due; thread safe where the stream is."""
        stream = self._stream
        if stream is None or self.state != "open" or now - self._last_beat < self._interval_s:
            return
        self._last_beat = now
        try:
            stream.send_nowait(KEEPALIVE_FRAME)
        except STREAM_ERRORS:
            return

    def _write(self, frame: bytes) -> None:
        stream = self._stream
        if stream is None or self.state != "open":
            return
        if self._trace is not None:
            self._trace_bytes(">", frame)
        self._acks = 0
        try:
            stream.send_nowait(frame)
        except STREAM_ERRORS:
            return  # The reader sees it too and reconnects; the frame is kept by its conversation.
        if stream.pending_bytes:
            self._flush.set()

    def _trace_bytes(self, direction: str, data: bytes) -> None:
        if self._trace is None:
            return
        offset, now = 0, time.monotonic()
        while offset < len(data):
            length, kind, _, channel, number = HEADER.unpack_from(data, offset)
            self._trace(direction, kind, number, channel, length, now)
            offset += HEADER.size + length

    def _dispatch(self, frame: Frame) -> None:
        kind, flags, channel, number, payload = frame
        if self._trace is not None:
            self._trace("<", kind, number, channel, len(payload), time.monotonic())
        if number == 0:
            self._on_connection_frame(kind, payload)
            return
        conversation = self._conversations.get(number)
        if conversation is None:
            self._on_stray(kind, flags, number)
        elif kind in (FrameType.DATA, FrameType.EVENT, FrameType.END):
            conversation.on_positioned(kind, channel, payload)
        elif kind == FrameType.RESPONSE:
            if conversation.on_response(payload, bool(flags & MORE)):
                del self._conversations[number]
                self._acknowledge(number)
        elif kind == FrameType.CREDIT:
            conversation.on_credit(payload)
        elif kind == FrameType.RESUMED:
            self._write(conversation.on_resumed(payload))
        else:
            raise ProtocolError(f"the box sent a frame of type {kind} within a conversation", request_id=number)

    def _on_stray(self, kind: int, flags: int, number: int) -> None:
        """A frame of a conversation that is over here: only what was on its way when it was given up is allowed."""
        if number > self._next_id:
            raise ProtocolError(f"the box spoke of a conversation that was never begun ({number})")
        if kind == FrameType.RESPONSE and number in self._abandoned:
            if not flags & MORE:
                self._abandoned.discard(number)
                self._acknowledge(number)
        elif number not in self._abandoned and kind != FrameType.CREDIT:
            raise ProtocolError(f"the box went on with a conversation that is over ({number})")

    def _on_connection_frame(self, kind: int, payload: bytes) -> None:
        if kind == FrameType.KEEPALIVE:
            return
        if kind == FrameType.GOODBYE:
            said = parse_json(payload)
            reason = str(said.get("reason"))
            if reason == "protocol":
                raise ProtocolError(f"the runner ended the stream: {said.get('message', '')}")
            if reason in ("lease", "shutdown", "replaced"):
                self._lose(ChannelLost(f"the runner ended the stream: {reason}"))
            raise anyio.EndOfStream
        raise ProtocolError(f"the box sent a frame of type {kind} outside of any conversation")

    def _acknowledge(self, number: int) -> None:
        """ACKs ride with the next frame; a few may wait until then."""
        frame = encode(FrameType.ACK, number)
        stream = self._stream
        if stream is None:
            return
        self._acks += 1
        if self._acks >= MAX_BATCHED_ACKS:
            self._write(frame)
        else:
            stream.queue_nowait(frame)

    async def _reconnect(self) -> None:
        deadline = time.monotonic() + self._lease_s
        attempt = 0
        while True:
            try:
                if self.diagnose is not None and (fatal := await self.diagnose()) is not None:
                    self._lose(fatal)
                    return
                with anyio.fail_after(max(0.1, deadline - time.monotonic())):
                    await self._connect()
            except ProtocolError:
                raise
            except (ExecError, TimeoutError, OSError) as error:
                if time.monotonic() >= deadline or self.state != "reconnecting":
                    self._lose(ChannelLost(f"the stream was lost and not restored within {self._lease_s:g} s: {error}"))
                    return
                await anyio.sleep(BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)])
                attempt += 1
                continue
            break
        if self.state != "reconnecting":
            return
        self.state = "open"
        for conversation in sorted(self._conversations.values(), key=lambda c: c.id):
            self._write(conversation.resume() if conversation.sent else conversation.start())
        self._reopened.set()
        self._reopened = anyio.Event()

    def _lose(self, why: ExecError) -> None:
        if self.state in ("lost", "closed"):
            return
        self.state = "lost"
        self.lost_reason = why
        for conversation in list(self._conversations.values()):
            conversation.fail(why)
        self._conversations.clear()
        self._reopened.set()
        if self.on_lost is not None:
            self.on_lost(why)

    def fail(self, why: ExecError) -> None:
        """End the channel for a reason that is known elsewhere (the box was seen dead, the pool closes)."""
        self._lose(why)
        stream = self._stream
        close_now = getattr(stream, "close_now", None)
        if close_now is not None:
            close_now()

    def begin(self, method: str, params: Mapping[str, object], window: int = DEFAULT_WINDOW) -> Conversation:
        """Start a conversation that the caller ends by `finish`; `converse` does both."""
        if self.state in ("lost", "closed"):
            reason = self.lost_reason
            raise reason if reason is not None else ChannelLost("the channel is closed")
        request = json.dumps({"method": method, "params": params, "window": window}, separators=(",", ":")).encode()
        self._next_id += 1
        self.calls += 1
        conversation = Conversation(self._write, self._next_id, request, window, self.facts.input_window)
        self._conversations[self._next_id] = conversation
        if self.state == "open":
            self._write(conversation.start())
        return conversation

    async def finish(self, conversation: Conversation, wait_s: float = CANCEL_WAIT_S) -> None:
        """Give a conversation up: cancel it when it is not answered, and wait at most so long for the receipt."""
        if not conversation.finished:
            conversation.cancel_nowait()
            if conversation.sent:
                with anyio.move_on_after(wait_s, shield=True):
                    await conversation.wait_finished()
        if self._conversations.pop(conversation.id, None) is not None and conversation.sent:
            self._abandoned.add(conversation.id)

    @asynccontextmanager
    async def converse(
        self, method: str, params: Mapping[str, object], *, window: int = DEFAULT_WINDOW
    ) -> AsyncIterator[Conversation]:
        """A conversation; leaving it early cancels the work and waits, shielded and at most 5 s, for the response."""
        conversation = self.begin(method, params, window)
        try:
            yield conversation
        finally:
            if not conversation.answered:
                await self.finish(conversation)

    async def call(
        self, method: str, params: Mapping[str, object], *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """A request whose answer is all there is. RemoteError, ChannelLost, OutcomeUnknown or ProtocolError.

        When `timeout_s` is over the work is cancelled, and OutcomeUnknown (with a TimeoutError as its cause) is raised.
        """
        conversation = self.begin(method, params)
        try:
            if timeout_s is None:
                return await conversation.response()
            with anyio.fail_after(timeout_s):
                return await conversation.response()
        except TimeoutError as error:
            raise OutcomeUnknown(
                f"{method} was not answered within {timeout_s:g} s", request_id=conversation.id
            ) from error
        finally:
            if not conversation.answered:
                await self.finish(conversation)

    async def aclose(self, *, shutdown: bool = False) -> None:
        """Leave the box (`detach`), or tell the runner to end everything and exit (`shutdown`). Harmless when repeated."""
        if self.state == "open" and self._stream is not None:
            reason = "shutdown" if shutdown else "detach"
            self._write(encode(FrameType.GOODBYE, payload=json.dumps({"reason": reason, "message": ""}).encode()))
            with anyio.move_on_after(1, shield=True):
                try:
                    await self._stream.drain()
                except STREAM_ERRORS:
                    logger.debug("the last words were not heard", exc_info=True)
        if self.state != "lost":
            self._lose(ChannelLost("the channel was closed"))
            self.state = "closed"
        if self._stream is not None:
            await self._close_quietly(self._stream)
