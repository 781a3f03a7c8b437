"""The calls between two resets of a slot; they end together."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, NoReturn

import anyio

from hermes_exec.aio.loop import other_loop_error, running_loop
from hermes_exec.channel import Channel, Conversation, Overdue, RemoteError
from hermes_exec.channel.channel import CANCEL_WAIT_S
from hermes_exec.errors import ChannelLost, ExecError, OutcomeUnknown, ProtocolError, SandboxDied, SlotClosed
from hermes_exec.results import KillReceipt
from hermes_exec.slot.answers import SlotFacts, optional_receipt, remote_failure
from hermes_exec.slot.checkpoint import SlotStart

ExplainLoss = Callable[[ExecError], Awaitable[ExecError]]
"""Explains the loss of a channel: returns SandboxDied with a post-mortem if the sandbox is dead."""

REFUSALS = frozenset({"ENOSPC", "EDQUOT"})
DISK_S = 60.0
TRANSPORT_ERRORS = (ChannelLost, OutcomeUnknown, ProtocolError, SandboxDied)


class SlotScope:
    """The calls of a slot's holder up to the next reset, which ends those under way.

    `slot` is the slot's name on the wire, `sandbox` the backend's name of the sandbox. Calls start in `workdir`, None
    for the workspace. `on_remaining` is called with the receipt of a kill that left processes behind. Errors of full
    disks have the `room_hint`.
    """

    def __init__(
        self,
        slot: str,
        sandbox: str,
        facts: SlotFacts,
        workdir: str | None,
        channel: Channel,
        explain_loss: ExplainLoss,
        on_remaining: Callable[[KillReceipt], None],
        room_hint: str = "",
    ) -> None:
        self.slot = slot
        self.sandbox = sandbox
        self.facts = facts
        self.workdir = workdir or facts.workspace
        self.channel = channel
        self.closed: str | None = None
        """Why the scope has ended; None while it lasts."""
        self.final = False
        """Whether it has ended for good, not only until a reset is done."""
        self.resets = 0
        """How many resets the holder had before."""
        self.successor: SlotScope | None = None
        """The scope in which the holder continues after a reset."""
        self.start: SlotStart | None = None
        """The state that the slot got from a checkpoint; None if it began empty."""
        self.disk_full = False
        """Whether a disk was nearly full at the end of a command, or refused a write, since the last `check_disk`."""
        self.quota_used_up = False
        self.filled_by_others: dict[str, Any] | None = None
        """The runner's measurement at that time, if others had filled the disk. It may have room again by now."""
        self._pid, self._loop = os.getpid(), running_loop()
        self._explain_loss = explain_loss
        self._on_left = on_remaining
        self._room_hint = room_hint
        self._scopes: set[anyio.CancelScope] = set()
        self._watched: set[Conversation] = set()
        self._idle: anyio.Event | None = None
        self._endings: dict[object, Callable[[], None]] = {}

    def check(self) -> None:
        """Raise SlotClosed if the scope has ended, RuntimeError in another process, or outside the pool's event
        loop.
        """
        if self.closed is not None:
            raise SlotClosed(self.closed)
        if self._pid != os.getpid():
            raise RuntimeError(f"this slot belongs to process {self._pid}: create a new pool after a fork")
        if running_loop() != self._loop:
            raise other_loop_error("this slot")

    @contextmanager
    def cancel_scope(self, deadline: float = float("inf")) -> Iterator[anyio.CancelScope]:
        """Open a cancel scope for one call. It is cancelled when the slot scope ends, and then raises SlotClosed.

        A deadline that passes only leaves the block, with `cancelled_caught` set.
        """
        self.check()
        with anyio.CancelScope(deadline=deadline) as cancel_scope:
            self._scopes.add(cancel_scope)
            try:
                yield cancel_scope
            finally:
                self._scopes.discard(cancel_scope)
                self._notify_idle()
        if cancel_scope.cancelled_caught and self.closed is not None:
            raise SlotClosed(self.closed)

    def watch(self, conversation: Conversation, deadline: float = inf) -> None:
        """Interrupt a call that only waits for a conversation: with SlotClosed at the end of the scope, with Overdue at
        `deadline`.

        The deadline is a time of time.monotonic(). A watch costs a tenth of a cancel scope.
        """
        # Not the obvious code: see docs/why-not-obvious.md ("Two ways to wait").
        self._watched.add(conversation)
        self.channel.set_deadline(conversation, deadline)

    def unwatch(self, conversation: Conversation) -> None:
        """End `watch`: the call is over."""
        conversation.deadline = inf
        self._watched.discard(conversation)
        self._notify_idle()

    def _notify_idle(self) -> None:
        if self._idle is not None and not self._scopes and not self._watched:
            self._idle.set()

    def on_close(self, key: object, ending: Callable[[], None]) -> None:
        """Register a callback for the end of the scope (a stream to close, a listener to stop)."""
        self._endings[key] = ending

    def forget(self, key: object) -> None:
        """Remove a callback of `on_close`."""
        self._endings.pop(key, None)

    def expire(self, why: str, *, final: bool = True) -> None:
        """End the scope, for good or until a reset is done: calls under way raise SlotClosed. May be called more than
        once.
        """
        lasted = self.closed is None
        if lasted or (final and not self.final):
            self.closed = why
        self.final = self.final or final
        if lasted:
            for cancel_scope in list(self._scopes):
                cancel_scope.cancel()
            for conversation in self._watched:
                conversation.interrupt(SlotClosed(why))
            for ending in list(self._endings.values()):
                ending()
            self._endings.clear()

    async def close(self, why: str, *, final: bool = True) -> None:
        """End the scope as `expire`, and wait until the calls under way have left."""
        self.expire(why, final=final)
        if self._scopes or self._watched:
            if self._idle is None:
                self._idle = anyio.Event()
            await self._idle.wait()

    def continue_in(self, successor: SlotScope) -> None:
        """Let the holder continue in another scope after a reset, unless this one has ended for good."""
        successor.resets = self.resets + 1
        self.successor = successor
        if self.final and self.closed is not None:
            successor.expire(self.closed)

    async def call(
        self,
        method: str,
        params: Mapping[str, object],
        *,
        timeout_s: float | None = None,
        path: str | None = None,
        on_unclaimed: Callable[[dict[str, Any]], Awaitable[object]] | None = None,
    ) -> dict[str, Any]:
        """Send a request of this slot and return its answer; errors are translated for the caller.

        `on_unclaimed` is called, shielded, with an answer that arrived after the call had been given up.

        Raises:
            TimeoutError: If no answer arrives within `timeout_s`.
        """
        deadline = inf if timeout_s is None else time.monotonic() + timeout_s
        answer: dict[str, Any] | None = None
        started: Conversation | None = None
        try:
            async with self.conversation(method, params, path=path) as conversation:
                started = conversation
                self.watch(conversation, deadline)
                answer = await conversation.response()
        except Overdue as error:
            raise TimeoutError(f"{method} was not answered within {timeout_s:g} s") from error
        finally:
            if started is not None:
                self.unwatch(started)
                if on_unclaimed is not None and answer is None and started.answered:
                    with anyio.CancelScope(shield=True), suppress(RemoteError, ExecError):
                        await on_unclaimed(started.result())
        return answer

    def conversation(
        self, method: str, params: Mapping[str, object], *, window: int = 1 << 20, path: str | None = None
    ) -> SlotConversation:
        """Return a conversation of this slot as a context manager: leaving it early ends the work, errors are
        translated.
        """
        return SlotConversation(self, method, {"slot": self.slot, **params}, window, path)

    async def send(self, conversation: Conversation, data: bytes) -> None:
        """Send bytes on an open conversation, waiting while the other side does not read.

        Raises:
            anyio.BrokenResourceError: If the conversation has ended.
        """
        self.check()
        if conversation.answered:
            raise anyio.BrokenResourceError
        if data and type(data) is bytes and conversation.send_nowait(data):  # without a cancel scope
            await anyio.lowlevel.checkpoint()
            return
        try:
            with self.cancel_scope():
                await conversation.send(data)
        except TRANSPORT_ERRORS as error:
            await self.fail(error)

    async def give_up(self, conversation: Conversation, wait_s: float = CANCEL_WAIT_S) -> None:
        """End the work of a conversation, and check its receipt if one arrives in time."""
        await self.channel.finish(conversation, wait_s)
        if conversation.answered:
            try:
                self.check_receipt(optional_receipt(conversation.result().get("killed")))
            except RemoteError:
                return

    def fail_channel(self, error: ProtocolError) -> None:
        """Fail the channel of a sandbox that broke the protocol, without waiting for its answers."""
        self.channel.fail(error)

    def check_receipt(self, killed: KillReceipt | None) -> None:
        """Check a receipt: remaining processes quarantine the slot."""
        if killed is not None and killed.left:
            self._on_left(killed)

    async def note_full_disk(self) -> None:
        """Record that a disk was nearly full or refused a write, and whether others had filled it."""
        self.disk_full = True
        if self.filled_by_others is None:
            with suppress(RemoteError, ExecError, TimeoutError):  # the earlier measurement remains
                self.filled_by_others = await self.disk_of_others()

    async def disk_of_others(self) -> dict[str, Any] | None:
        """Return the runner's measurement if a disk is nearly full, or a quota used up, by others' files; else None."""
        facts = await self.call("slot.disk", {"refused": self.quota_used_up}, timeout_s=DISK_S)
        return facts if facts.get("nearly_full") is True and facts.get("by_others") is True else None

    async def translate(self, error: Exception, path: str | None = None) -> Exception:
        """Return the caller's exception for an exception of the channel."""
        if isinstance(error, RemoteError):
            if error.errno in REFUSALS:
                self.quota_used_up |= error.errno == "EDQUOT"
                await self.note_full_disk()
            failure = remote_failure(error, path=path)
            if error.errno == "ENOSPC" and isinstance(failure, OSError) and self._room_hint:
                failure.strerror = f"{failure.strerror} ({self._room_hint})"
            return failure
        if isinstance(error, ProtocolError):
            self.fail_channel(error)
        if self.closed is not None:
            return SlotClosed(self.closed)
        if isinstance(error, ExecError):
            with anyio.CancelScope(shield=True):
                return await self._explain_loss(error)
        return error

    async def fail(self, error: Exception, path: str | None = None) -> NoReturn:
        """Raise the caller's exception for an exception of the channel, which becomes its cause."""
        raise_translated(await self.translate(error, path), error)


def raise_translated(translated: Exception, error: Exception) -> NoReturn:
    """Raise `translated` from `error`, or `error` itself with its own cause if both are the same."""
    if translated is error:
        raise error
    raise translated from error


class SlotConversation:
    """The context manager of `SlotScope.conversation`."""

    # Not the obvious code: see docs/why-not-obvious.md ("Context managers as classes").
    __slots__ = ("_conversation", "_method", "_params", "_path", "_scope", "_window")

    def __init__(
        self, scope: SlotScope, method: str, params: Mapping[str, object], window: int, path: str | None
    ) -> None:
        self._scope, self._method, self._params, self._window, self._path = scope, method, params, window, path
        self._conversation: Conversation | None = None

    async def __aenter__(self) -> Conversation:
        self._scope.check()
        try:
            self._conversation = self._scope.channel.begin(self._method, self._params, self._window)
        except TRANSPORT_ERRORS as error:
            await self._scope.fail(error, self._path)
        return self._conversation

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        conversation = self._conversation
        if isinstance(error, ProtocolError):
            self._scope.fail_channel(error)
        if conversation is not None and not conversation.answered:
            await self._scope.give_up(conversation)
        if isinstance(error, (RemoteError, *TRANSPORT_ERRORS)):
            await self._scope.fail(error, self._path)
