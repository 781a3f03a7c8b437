"""One request and its exchange: the bytes it sends and receives, and its state that survives a lost stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

import anyio

from hermes_exec.aio.waker import Waker
from hermes_exec.channel.encoding import printable
from hermes_exec.channel.frames import (
    MAX_DATA,
    MAX_MESSAGE_BYTES,
    MAX_PAYLOAD,
    POSITION,
    FrameType,
    encode,
    encode_message,
    encode_position,
    encode_positioned,
    parse_json,
    unpack_position,
)
from hermes_exec.errors import ChannelLost, ExecError, OutcomeUnknown, ProtocolError

BROKEN_RESPONSE = "the sandbox sent a response without a result"
LONGEST_MESSAGE = 4096
"""Characters of an error message, which may quote its subject."""
LONGEST_NAME = 64


class Data(NamedTuple):
    """Bytes of one channel of the conversation."""

    channel: int
    data: bytes


class End(NamedTuple):
    """The end of a channel's data."""

    channel: int


class Event(NamedTuple):
    """News from the runner, such as `started`."""

    event: dict[str, Any]


Item = Data | End | Event


class Overdue(Exception):
    """Raised when the deadline of a conversation has passed."""


class RemoteError(Exception):
    """Raised when the runner answers with an error of docs/protocol.md; `kind` is its name there."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.kind = printable(error.get("kind"), LONGEST_NAME) or "internal"
        self.message = printable(error.get("message"), LONGEST_MESSAGE) or "the runner gave no reason"
        detail = error.get("detail")
        self.errno: str | None = printable(error.get("errno"), LONGEST_NAME) or None
        self.path: object = error.get("path")
        self.detail: dict[str, Any] = detail if isinstance(detail, dict) else {}
        super().__init__(self.message)


class Conversation:
    """A conversation of a channel, made by `Channel.converse`. One task at a time may receive, and another may send."""

    # Not the obvious code: see docs/why-not-obvious.md ("Class-level defaults of a conversation").
    sent = False
    """Whether a stream accepted the request: from then on it may have run."""
    deadline = inf
    """The time (of `time.monotonic`) at which the channel interrupts with Overdue."""
    _signal: Any = None
    _on_arrival: Callable[[], None] | None = None
    _finished: anyio.Event | None = None
    _window_open: anyio.Event | None = None
    _interruption: Exception | None = None
    _received = 0
    _consumed = 0
    _credited = 0
    _response_parts: list[bytes] | None = None
    _response_size = 0
    _answer: dict[str, Any] | None = None
    _failure: ExecError | None = None
    _input_position = 0
    _input_consumed = 0
    _cancelled = False
    _abandoned = False
    _resuming = False
    _ended: frozenset[int] = frozenset()

    def __init__(
        self, write: Callable[[bytes], None], waker: Waker, number: int, request: bytes, window: int, input_window: int
    ) -> None:
        self.id = number
        self._write = write
        self._waker = waker
        self._request = request
        self._window = window
        self._input_window = input_window
        self._items: deque[tuple[Item, int]] = deque()
        self._kept: deque[tuple[int, FrameType, int, bytes]] = deque()

    @property
    def received_bytes(self) -> int:
        """The bytes received from the sandbox, including the response."""
        return self._received + self._response_size

    @property
    def _runner_has_request(self) -> bool:
        """Whether the runner has the request. On a new stream this is unknown before RESUMED, and frames are kept."""
        return self.sent and not self._resuming

    @property
    def answered(self) -> bool:
        """Whether the response has arrived."""
        return self._answer is not None

    @property
    def finished(self) -> bool:
        """Whether the conversation is over: answered, or failed with the channel."""
        return self._answer is not None or self._failure is not None

    async def send(self, data: bytes | memoryview, channel: int = 0) -> None:
        """Send bytes, waiting while the runner is a whole window behind. After the response, bytes are dropped."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), MAX_DATA):
            piece = bytes(view[start : start + MAX_DATA])
            while self._input_position - self._input_consumed >= self._input_window and not self.finished:
                self._window_open = self._window_open or anyio.Event()
                await self._window_open.wait()
            if self._failure is not None:
                raise self.failure()
            if self.answered:
                return
            self._put(FrameType.DATA, channel, piece)
        await anyio.lowlevel.checkpoint()

    def send_nowait(self, data: bytes, channel: int = 0) -> bool:
        """Send bytes if `send` would neither wait nor fail; else send nothing and return False."""
        if len(data) > MAX_DATA or self.finished or self._input_position - self._input_consumed >= self._input_window:
            return False
        self._put(FrameType.DATA, channel, data)
        return True

    async def end(self, channel: int = 0) -> None:
        """Send the end of this channel's data."""
        if not self.finished:
            self._put(FrameType.END, channel, b"")
        await anyio.lowlevel.checkpoint()

    def _put(self, kind: FrameType, channel: int, data: bytes) -> None:
        position = self._input_position
        self._kept.append((position, kind, channel, data))
        self._input_position += len(data)
        if self._runner_has_request:
            self._write(encode_positioned(kind, self.id, channel, position, data))

    async def receive(self) -> Item | None:
        """Return the next item in order, or None after the response and all items before it."""
        while not self._items:
            if self._answer is not None:
                return None
            if self._failure is not None:
                raise self.failure()
            if self._interruption is not None:
                error, self._interruption = self._interruption, None
                raise error
            self._signal = signal = self._waker.make()
            await self._waker.wait(signal)
        return self.receive_nowait()

    def receive_nowait(self) -> Item | None:
        """Return the next item if it has arrived, else None."""
        if not self._items:
            return None
        item, size = self._items.popleft()
        if size:
            self._consume(size)
        return item

    async def deliver(self, sink: Callable[[bytes], bool]) -> None:
        """Pass incoming data from the event loop to `sink`, without waking a task for each piece.

        Returns when `sink` returns False, or when the next item is for `receive`. Exceptions of `sink` are raised here.
        """
        # Not the obvious code: see docs/why-not-obvious.md ("Data without waking a task").
        ended, failure = anyio.Event(), None

        def pass_data() -> None:
            nonlocal failure
            more = bool(self._items)
            try:
                while more and self._items:
                    item = self._items[0][0]
                    if type(item) is not Data:
                        more = False
                        break
                    self.receive_nowait()
                    more = sink(item.data)
            except Exception as error:  # noqa: BLE001 -- raised below, not in the channel that calls this
                failure, more = error, False
            if not more:
                self._on_arrival = None
                ended.set()

        self._on_arrival = pass_data
        try:
            if self._items or self.finished:
                pass_data()
            await ended.wait()
        finally:
            self._on_arrival = None
        if failure is not None:
            raise failure

    async def response(self) -> dict[str, Any]:
        """Wait for the result; unreceived data is dropped.

        Raises:
            RemoteError: If the runner answered with an error.
        """
        while await self.receive() is not None:
            pass
        return self.result()

    async def collect(self) -> tuple[dict[str, Any], dict[int, list[bytes]]]:
        """Wait for the result, and return it with the pieces of data of each channel."""
        pieces: dict[int, list[bytes]] = {}
        while (item := await self.receive()) is not None:
            if type(item) is Data:
                pieces.setdefault(item.channel, []).append(item.data)
        return self.result(), pieces

    def result(self) -> dict[str, Any]:
        """Return the result of an answered conversation."""
        if self._answer is None:
            raise self.failure()
        error = self._answer.get("error")
        if isinstance(error, dict):
            raise RemoteError(error)
        result = self._answer.get("result")
        if not isinstance(result, dict):
            raise ProtocolError(BROKEN_RESPONSE, request_id=self.id)
        return result

    def failure(self) -> ExecError:
        """Return a new exception with the reason for the missing answer. A request that was sent may have run."""
        cause = self._failure
        if cause is None:
            return ChannelLost("the conversation has not been answered", request_id=self.id)
        if isinstance(cause, ProtocolError) or not self.sent:
            return cause
        unknown = OutcomeUnknown(
            f"the request was sent and its answer is lost: {cause}",
            sandbox=cause.sandbox,
            request_id=self.id,
        )
        unknown.__cause__ = cause
        return unknown

    async def cancel(self) -> None:
        """Ask the runner to end the work; the response still arrives."""
        self.cancel_nowait()
        await anyio.lowlevel.checkpoint()

    def cancel_nowait(self) -> None:
        """Cancel like `cancel`, without a checkpoint."""
        self._cancelled = True
        if self._runner_has_request and not self.finished:
            self._write(encode(FrameType.CANCEL, self.id))

    async def wait_finished(self) -> None:
        """Wait for the response or the failure, and drop data."""
        while not self.finished:
            self._drop_items()
            self._finished = self._finished or anyio.Event()
            await self._finished.wait()
        self._drop_items()

    def abandon(self) -> None:
        """Drop all data, now and later, so that the response can arrive."""
        self._abandoned = True
        self._drop_items()

    def interrupt(self, why: Exception) -> None:
        """Make the current or next `receive` raise `why` once; the conversation itself goes on."""
        if not self.finished:
            self._interruption = why
            self._notify()

    def _notify(self) -> None:
        if self._signal is not None:
            self._waker.wake(self._signal)
            self._signal = None
        if self._finished is not None:
            self._finished.set()
            self._finished = None
        if self._on_arrival is not None:
            self._on_arrival()

    def _wake_sender(self) -> None:
        if self._window_open is not None:
            self._window_open.set()
            self._window_open = None

    def _drop_items(self) -> None:
        size = sum(size for _, size in self._items)
        self._items.clear()
        if size:
            self._consume(size)

    def _consume(self, size: int) -> None:
        self._consumed += size
        if self._consumed - self._credited >= self._window // 4 and self._answer is None and self._failure is None:
            self._credited = self._consumed
            self._write(encode_position(FrameType.CREDIT, self.id, self._consumed))

    # The channel calls the following methods in the event loop, for frames and for lost streams.

    def start(self) -> bytes:
        """Return all frames for a stream that has not seen this conversation."""
        self.sent = True
        parts = [encode_message(FrameType.REQUEST, self.id, self._request)]
        parts += [encode_positioned(kind, self.id, channel, pos, data) for pos, kind, channel, data in self._kept]
        if self._cancelled:
            parts.append(encode(FrameType.CANCEL, self.id))
        return b"".join(parts)

    def resume(self) -> bytes:
        """Return the frames that continue the conversation on a new stream. A partial response is sent again as a
        whole.
        """
        self._response_parts, self._response_size = None, 0
        self._resuming = True
        frames = encode_position(FrameType.RESUME, self.id, self._received)
        if self._consumed:
            # The last CREDIT may be lost with the stream, and if all data is consumed, no other follows.
            self._credited = self._consumed
            frames += encode_position(FrameType.CREDIT, self.id, self._consumed)
        return frames

    def on_resumed(self, payload: bytes) -> bytes:
        """Return the frames that the runner lacks: the rest of the input, or everything if the request never
        arrived.
        """
        if len(payload) != 1 + POSITION.size or payload[0] > 1 or not self._resuming:
            raise ProtocolError("the sandbox sent an invalid or unexpected RESUMED", request_id=self.id)
        self._resuming = False
        have = unpack_position(payload[1:])
        if not payload[0]:
            if self._received or have:
                raise ProtocolError("the sandbox lost a request that it was working on", request_id=self.id)
            if self._cancelled:
                # The request was cancelled, and must not run beside newer requests.
                self.sent = False
                self.fail(ChannelLost("it was cancelled before the runner had it", request_id=self.id))
                return b""
            return self.start()
        if have > self._input_position:
            raise ProtocolError("the sandbox confirmed more data than was sent", request_id=self.id)
        parts = []
        for position, kind, channel, data in self._kept:
            skip = max(0, have - position)
            if kind is FrameType.END or skip < len(data):
                parts.append(
                    encode_positioned(kind, self.id, channel, position + skip if data else position, data[skip:])
                )
        if self._cancelled:
            parts.append(encode(FrameType.CANCEL, self.id))
        return b"".join(parts)

    def on_positioned(self, kind: int, channel: int, payload: bytes) -> None:
        """Handle a DATA, EVENT or END of the sandbox."""
        position = unpack_position(payload)
        size = len(payload) - POSITION.size
        if position != self._received or self._response_parts:
            raise ProtocolError(
                f"the sandbox sent position {position} of a conversation where {self._received} belongs",
                request_id=self.id,
            )
        if kind == FrameType.END:
            if size:
                raise ProtocolError("the sandbox sent an END with data", request_id=self.id)
            # An END may come twice, because the runner resends its last one after a lost stream.
            if channel not in self._ended:
                self._ended |= {channel}
                self._items.append((End(channel), 0))
        elif channel in self._ended and kind == FrameType.DATA:
            raise ProtocolError("the sandbox sent data on a channel that it had ended", request_id=self.id)
        else:
            if self._received - self._credited > self._window + MAX_PAYLOAD:
                raise ProtocolError("the sandbox sent more than it was given credit for", request_id=self.id)
            self._received += size
            if kind == FrameType.DATA:
                self._items.append((Data(channel, payload[POSITION.size :]), size))
            else:
                self._items.append((Event(parse_json(payload[POSITION.size :])), size))
        if len(self._items) > (self._window + MAX_PAYLOAD) // 16:
            raise ProtocolError("the sandbox sent a flood of tiny frames", request_id=self.id)
        if self._abandoned:
            self._drop_items()
        self._notify()

    def on_response(self, payload: bytes, more: bool) -> bool:
        """Handle a RESPONSE or a part of it, and return whether it is complete."""
        self._response_size += len(payload)
        if self._response_size > MAX_MESSAGE_BYTES:
            raise ProtocolError("the sandbox sent a response without end", request_id=self.id)
        if more or self._response_parts:
            self._response_parts = self._response_parts or []
            self._response_parts.append(payload)
            if more:
                return False
            payload = b"".join(self._response_parts)
        answer = parse_json(payload)
        if not isinstance(answer.get("result"), dict) and not isinstance(answer.get("error"), dict):
            raise ProtocolError(BROKEN_RESPONSE, request_id=self.id)
        self._answer = answer
        self._response_parts = None
        self._kept.clear()
        self._notify()
        self._wake_sender()
        return True

    def on_credit(self, payload: bytes) -> bool:
        """Handle a CREDIT of the sandbox: drop the data before its position. Return whether it is news."""
        position = unpack_position(payload)
        if position > self._input_position:
            raise ProtocolError("the sandbox gave credit for data that was never sent", request_id=self.id)
        if position <= self._input_consumed:
            return False
        self._input_consumed = position
        while (
            self._kept and self._kept[0][1] is FrameType.DATA and self._kept[0][0] + len(self._kept[0][3]) <= position
        ):
            self._kept.popleft()
        self._wake_sender()
        return True

    def fail(self, why: ExecError) -> None:
        """End the conversation because the channel is gone, and wake the waiters."""
        if self._answer is None and self._failure is None:
            self._failure = why
            self._kept.clear()
            self._notify()
            self._wake_sender()
