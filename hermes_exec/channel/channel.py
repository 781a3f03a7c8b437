"""One byte stream into a sandbox carries many conversations; within the lease, another stream replaces a lost one."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import chain, repeat
from math import inf
from typing import Any, Literal

import anyio

from hermes_exec.aio.waker import Waker, current_waker
from hermes_exec.channel.connection import ChannelConnection, Opener
from hermes_exec.channel.conversation import Conversation, Overdue
from hermes_exec.channel.encoding import printable
from hermes_exec.channel.frames import MAX_MESSAGE_BYTES, MORE, Frame, FrameType, encode, encode_json, parse_json
from hermes_exec.channel.handshake import Identity, SandboxFacts, unpack_report
from hermes_exec.channel.keepalive import KEEPALIVE_THREAD
from hermes_exec.channel.trace import ChannelTrace
from hermes_exec.errors import (
    ChannelLost,
    ConfigError,
    ExecError,
    OutcomeUnknown,
    PostMortem,
    ProtocolError,
    SandboxDied,
)
from hermes_exec.results import LayerSize, RunnerMemory

DEFAULT_WINDOW = 1 << 20
CANCEL_WAIT_S = 5.0
BACKOFF_S = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
MAX_BATCHED_ACKS = 64
PROMPT_ACK_BYTES = 64 << 10
"""A conversation that received more is acknowledged at once, because the runner keeps that much memory for it."""
REQUEST_TOO_LONG = (
    "the request takes {sent_mb} MiB, and the limit is {most_mb} MiB: put a long script, argument, variable or list "
    "into a file of the slot (slot.files.write_text, slot.files.upload) and name that file, or pass it as stdin"
)

# Not the obvious code: see docs/why-not-obvious.md ("Frame types as plain integers").
RESPONSE = int(FrameType.RESPONSE)
POSITIONED = frozenset((int(FrameType.DATA), int(FrameType.EVENT), int(FrameType.END)))

State = Literal["open", "reconnecting", "lost", "closed"]
Diagnose = Callable[[], Awaitable[SandboxDied | None]]


class Channel:
    """Conversations with one sandbox. `run` must be running for any answer to arrive.

    `diagnose` is called when a stream is lost. If it returns an exception (SandboxDied), the channel ends at once and
    does not retry until the lease is over. `on_lost` is called once, if the channel ends without being closed.
    """

    def __init__(
        self,
        opener: Opener,
        *,
        lease_s: float,
        sandbox: str = "the sandbox",
        memory_bytes: int = 0,
        trace: ChannelTrace | None = None,
        diagnose: Diagnose | None = None,
    ) -> None:
        self.state: State = "open"
        self.lost_reason: ExecError | None = None
        self.on_lost: Callable[[ExecError], None] | None = None
        self.calls = 0
        self.diagnose = diagnose
        self._opener = opener
        self._lease_s = lease_s
        self._sandbox = sandbox
        self._silence_s = 0.0
        self._interval_s = min(5.0, lease_s / 6)
        self._trace = trace
        self._waited_since: float | None = None
        self._identity = Identity(memory_bytes=memory_bytes)
        self._connection: ChannelConnection | None = None
        self._facts: SandboxFacts | None = None
        self._memory: RunnerMemory | None = None
        self.layers = LayerSize(0, 0)
        """The size of the sandbox's layers, from the runner's latest answer to a keepalive."""
        self._conversations: dict[int, Conversation] = {}
        self._next_id = 0
        self._acks = 0
        self._scope = anyio.CancelScope()
        self._waker: Waker | None = None
        self._next_look = inf
        self._sooner = anyio.Event()

    @classmethod
    async def open(
        cls,
        opener: Opener,
        *,
        lease_s: float,
        sandbox: str = "the sandbox",
        memory_bytes: int = 0,
        trace: ChannelTrace | None = None,
        diagnose: Diagnose | None = None,
        patience_s: float = 0.0,
    ) -> Channel:
        """Open the first stream and claim the runner, retrying for `patience_s`. `sandbox` is its name in errors,
        `memory_bytes` the runner's memory budget, 0 for its default.

        Raises:
            ChannelLost, OSError: If the stream cannot be opened.
            ProtocolError: If the runner breaks the protocol.
            SandboxDied: If `diagnose` returned it after a failure.
        """
        channel = cls(
            opener, lease_s=lease_s, sandbox=sandbox, memory_bytes=memory_bytes, trace=trace, diagnose=diagnose
        )
        await channel._connect_within(patience_s)
        return channel

    @property
    def facts(self) -> SandboxFacts:
        """The facts that the sandbox sent when the stream was opened."""
        if self._facts is None:
            raise ChannelLost("the channel was never opened")
        return self._facts

    @property
    def memory(self) -> RunnerMemory:
        """The runner's memory use, from its latest answer to a keepalive."""
        return self._memory or self.facts.memory

    @property
    def boot_id(self) -> str:
        """The boot id of the runner that this channel belongs to."""
        return self.facts.boot_id

    async def _connect(self) -> None:
        self._waker = self._waker or current_waker()
        connection = await ChannelConnection.open(
            self._opener, self._identity, self._lease_s, self._interval_s, self._trace
        )
        if self._connection is not None:
            KEEPALIVE_THREAD.remove(self._connection)
        self._connection, self._facts, self._memory = connection, connection.facts, None
        KEEPALIVE_THREAD.add(connection)

    async def run(self) -> None:
        """Serve the channel until it is closed or lost. No behaviour of a sandbox makes this raise."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._watch_deadlines)
                    await self._stay_connected()
                    tasks.cancel_scope.cancel()
        finally:
            self._lose(ChannelLost("the channel was closed"))
            connection = self._connection
            if connection is not None:
                KEEPALIVE_THREAD.remove(connection)
                await connection.aclose()

    async def _stay_connected(self) -> None:
        try:
            while self.state in ("open", "reconnecting"):
                await self._serve()
                if self.state == "open":
                    self.state = "reconnecting"
                    await self._reconnect()
        except ProtocolError as error:
            self._lose(error)

    # Not the obvious code: see docs/why-not-obvious.md ("One timer for all deadlines").
    async def _watch_deadlines(self) -> None:
        """Interrupt conversations at their deadlines. One timer serves all of them, so most calls never set one."""
        while True:
            now = time.monotonic()
            self._next_look, self._sooner = inf, anyio.Event()
            for conversation in self._conversations.values():
                if conversation.deadline <= now:
                    conversation.deadline = inf
                    conversation.interrupt(Overdue())
                self._next_look = min(self._next_look, conversation.deadline)
            with anyio.move_on_after(self._next_look - now):
                await self._sooner.wait()

    def set_deadline(self, conversation: Conversation, deadline: float) -> None:
        """Interrupt a conversation with Overdue at a time of `time.monotonic()`."""
        conversation.deadline = deadline
        if deadline < self._next_look:
            self._next_look = deadline
            self._sooner.set()

    async def _serve(self) -> None:
        connection = self._connection
        if connection is None:
            raise ChannelLost("the channel was never opened")
        try:
            await connection.serve(self._dispatch)
        finally:
            self._note_silence()

    def _note_silence(self) -> None:
        if self.state == "open" and self._connection is not None:
            self._silence_s = self._connection.silence_s

    @property
    def silence(self) -> str:
        """The driver's part in the end of the runner's lease, for an error; empty if it had none."""
        self._note_silence()
        if self._silence_s <= self._lease_s:
            return ""
        return f"; this driver was silent for {self._silence_s:.0f} s, longer than lease_s={self._lease_s:g}"

    def _write(self, frames: bytes) -> None:
        connection = self._connection
        if connection is not None and self.state == "open":
            self._acks = 0
            connection.write(frames)

    def _dispatch(self, frame: Frame) -> None:
        kind, flags, channel, number, payload = frame
        if number == 0:
            self._on_connection_frame(kind, payload)
            return
        conversation = self._conversations.get(number)
        if conversation is None:
            if kind != FrameType.CREDIT or number > self._next_id:
                raise ProtocolError(f"the sandbox sent a frame of an unknown conversation ({number})")
            self._waste()
        elif kind == RESPONSE:
            if conversation.on_response(payload, bool(flags & MORE)):
                del self._conversations[number]
                self._acknowledge(conversation)
        elif kind in POSITIONED:
            conversation.on_positioned(kind, channel, payload)
        elif kind == FrameType.CREDIT:
            if not conversation.on_credit(payload):
                self._waste()
        elif kind == FrameType.RESUMED:
            self._write(conversation.on_resumed(payload))
            if not conversation.sent:
                del self._conversations[number]
        else:
            raise ProtocolError(f"the sandbox sent a frame of type {kind} within a conversation", request_id=number)

    def _waste(self) -> None:
        if self._connection is not None:
            self._connection.count_wasted_frame()

    def _on_connection_frame(self, kind: int, payload: bytes) -> None:
        if kind == FrameType.KEEPALIVE:
            if self._connection is not None:
                self._connection.on_keepalive()
            if (report := unpack_report(payload)) is not None:
                self._memory, self.layers = report
            self._waste()
            return
        if kind != FrameType.GOODBYE:
            raise ProtocolError(f"the sandbox sent a frame of type {kind} outside of any conversation")
        goodbye = parse_json(payload)
        reason = goodbye.get("reason")
        if reason == "protocol":
            raise ProtocolError(f"the runner ended the stream: {printable(goodbye.get('message'))}")
        if reason == "shutdown":
            self._lose(SandboxDied("the runner ended", post_mortem=PostMortem(reason="the runner was asked to end")))
        elif reason == "lease":
            self._lose(ChannelLost(f"the runner of {self._sandbox} ended the stream: {reason}{self.silence}"))
        raise anyio.EndOfStream  # also if `replaced`: the HELLO of an older, abandoned stream came late

    # Not the obvious code: see docs/why-not-obvious.md ("Acknowledgements ride along").
    def _acknowledge(self, conversation: Conversation) -> None:
        """Acknowledge a response with the next frame or keepalive; at once if many wait or this one frees much
        memory.
        """
        frame = encode(FrameType.ACK, conversation.id)
        self._acks += 1
        if self._acks >= MAX_BATCHED_ACKS or conversation.received_bytes > PROMPT_ACK_BYTES:
            self._write(frame)
        elif self._connection is not None:
            self._connection.queue(frame)

    async def _reconnect(self) -> None:
        try:
            await self._check_alive()
            await self._connect_within(self._lease_s)
        except ProtocolError:
            raise
        except SandboxDied as error:
            self._lose(error)
        except (ExecError, OSError) as error:
            lost = f"the stream to {self._sandbox} was lost and not restored within {self._lease_s:g} s"
            self._lose(ChannelLost(f"{lost}: {error}{self.silence}"))
        else:
            self.state, self._silence_s = "open", 0.0
            for conversation in sorted(self._conversations.values(), key=lambda c: c.id):
                self._write(conversation.resume() if conversation.sent else conversation.start())

    async def _check_alive(self) -> None:
        if self.diagnose is not None and (fatal := await self.diagnose()) is not None:
            raise fatal

    async def _connect_within(self, patience_s: float) -> None:
        """Open a stream, retrying until the time is over. Raises like `open`."""
        deadline = time.monotonic() + patience_s
        for pause_s in chain(BACKOFF_S, repeat(BACKOFF_S[-1])):
            try:
                with anyio.move_on_after(max(0.1, deadline - time.monotonic()) if patience_s else inf) as scope:
                    await self._connect()
                if not scope.cancelled_caught:
                    return
                raise ChannelLost("the runner did not answer in time")
            except (ProtocolError, SandboxDied):
                raise
            except (ExecError, OSError):
                if time.monotonic() >= deadline:
                    raise
            await anyio.sleep(pause_s)
            await self._check_alive()

    def _lose(self, why: ExecError) -> None:
        if self.state in ("lost", "closed"):
            return
        self._note_silence()
        self.state = "lost"
        self.lost_reason = why
        if self._trace is not None:
            self._trace.on_lost(type(why).__name__)
        for conversation in list(self._conversations.values()):
            conversation.fail(why)
        self._conversations.clear()
        if self.on_lost is not None:
            self.on_lost(why)

    def fail(self, why: ExecError) -> None:
        """End the channel for an outside reason: the sandbox is dead, or the pool closes."""
        self._lose(why)
        self._scope.cancel()
        if self._connection is not None:
            self._connection.stop()

    def begin(self, method: str, params: Mapping[str, object], window: int = DEFAULT_WINDOW) -> Conversation:
        """Start a conversation, which the caller ends by `finish`; `converse` does both.

        Over a link with long round trips, the windows are larger than `window` and the runner's own.

        Raises:
            ConfigError: If the request is too long.
            ChannelLost, SandboxDied, ProtocolError: If the channel is gone.
        """
        if self.lost_reason is not None:
            raise self.lost_reason.with_traceback(None)
        input_window = self.facts.input_window
        if self._connection is not None:
            window, input_window = self._connection.window(window), self._connection.window(input_window)
        message = {"method": method, "params": params, "window": window, "input_window": input_window}
        request = encode_json(message).encode()
        if len(request) > MAX_MESSAGE_BYTES:
            raise ConfigError(REQUEST_TOO_LONG.format(sent_mb=len(request) >> 20, most_mb=MAX_MESSAGE_BYTES >> 20))
        self._next_id += 1
        self.calls += 1
        if self._trace is not None:
            now = time.monotonic()
            self._trace.on_call(self._next_id, method, now if self._waited_since is None else self._waited_since)
            self._waited_since = None
        conversation = Conversation(
            self._write, self._waker or current_waker(), self._next_id, request, window, input_window
        )
        self._conversations[self._next_id] = conversation
        if self.state == "open":
            self._write(conversation.start())
        return conversation

    def set_waiting_since(self, since: float) -> None:
        """Set for the trace since when the next call has waited."""
        self._waited_since = since

    async def finish(self, conversation: Conversation, wait_s: float = CANCEL_WAIT_S) -> None:
        """Give up a conversation: cancel it if it has no answer, and wait at most `wait_s` for the response."""
        if conversation.finished:
            return
        conversation.cancel_nowait()
        if not conversation.sent:
            self._conversations.pop(conversation.id, None)
            return
        if wait_s > 0:
            with anyio.move_on_after(wait_s, shield=True):
                await conversation.wait_finished()
        if not conversation.finished:
            conversation.abandon()

    @asynccontextmanager
    async def converse(
        self, method: str, params: Mapping[str, object], *, window: int = DEFAULT_WINDOW
    ) -> AsyncIterator[Conversation]:
        """Hold a conversation. Leaving early cancels the work and waits for the response, shielded, for at most 5 s."""
        conversation = self.begin(method, params, window)
        try:
            yield conversation
        finally:
            await self.finish(conversation)

    async def call(
        self, method: str, params: Mapping[str, object], *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Send a request and return its result.

        Raises:
            RemoteError: If the runner answered with an error.
            ChannelLost: If the channel was lost before the request was sent.
            OutcomeUnknown: If the channel was lost later, or `timeout_s` passed (then a TimeoutError is the cause).
            ProtocolError: If the sandbox broke the protocol.
        """
        conversation = self.begin(method, params)
        try:
            if timeout_s is None:
                return await conversation.response()
            with anyio.fail_after(timeout_s):
                return await conversation.response()
        except TimeoutError as error:
            late = f"{method} was not answered within {timeout_s:g} s"
            raise OutcomeUnknown(late, request_id=conversation.id) from error
        finally:
            await self.finish(conversation)

    async def aclose(self, *, shutdown: bool = False) -> None:
        """Leave the sandbox (`detach`), or have the runner end everything and exit (`shutdown`). Repeated calls do
        nothing.
        """
        connection = self._connection
        if self.state == "open" and connection is not None:
            reason = "shutdown" if shutdown else "detach"
            self._write(encode(FrameType.GOODBYE, payload=json.dumps({"reason": reason, "message": ""}).encode()))
            await connection.drain()
        if self.state != "lost":
            self.on_lost = None
            self._lose(ChannelLost("the channel was closed"))
            self.state = "closed"
        self._scope.cancel()
        if connection is not None:
            connection.stop()
            KEEPALIVE_THREAD.remove(connection)
            await connection.aclose()
