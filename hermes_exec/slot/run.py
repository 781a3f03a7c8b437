"""One command from request to result: input, live output, timeout and cancellation."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterable, Awaitable, Callable
from math import inf
from typing import Any, Literal

import anyio

from hermes_exec.channel import Data, Event, Overdue, RemoteError
from hermes_exec.channel.channel import CANCEL_WAIT_S
from hermes_exec.checks import validate_timeout
from hermes_exec.errors import ChannelLost, ConfigError, OutcomeUnknown, ProtocolError
from hermes_exec.results import RunResult
from hermes_exec.slot.run_result import run_result
from hermes_exec.slot.scope import TRANSPORT_ERRORS, SlotScope

Stdin = str | bytes | bytearray | memoryview | AsyncIterable[bytes] | None
OnOutput = Callable[[Literal["stdout", "stderr"], bytes], Awaitable[object] | object]
"""Called with each piece of output as it arrives. A slow callback slows the command."""

RESULT_GRACE_S = 3.0
"""Seconds after a command's timeout in which its result may still arrive; then it is cancelled and given up."""
CANCEL_GRACE_S = 1.0
RESULT_SILENCE_S = 15.0
"""Seconds of silence in the middle of a result after which it is given up."""
MIN_BYTES_PER_S = 16 << 10
"""Minimum rate of a result: a sandbox must not postpone the end forever."""
SHORT_BYTES = 16 << 10
PROMPT_S = 0.25
LIVE_STREAMS: dict[int, Literal["stdout", "stderr"]] = {5: "stdout", 6: "stderr"}


async def execute(
    scope: SlotScope,
    params: dict[str, Any],
    *,
    stdin: Stdin = None,
    timeout_s: float | None = None,
    on_output: OnOutput | None = None,
    on_answer: Callable[[dict[str, Any]], object] | None = None,
) -> RunResult:
    """Run `exec.run` with validated params and return its result.

    `on_answer` receives the raw answer, or the `detail` of an error. Raises as `Slot.run`.
    """
    feed = validate_stdin(stdin)
    params["timeout_s"] = timeout_s = validate_timeout(timeout_s)
    params["stdin"] = feed is not None
    params["stream"] = on_output is not None
    execution = _Execution(scope, params, feed, timeout_s, on_output)
    try:
        return await execution.run()
    finally:
        if on_answer is not None and execution.answer is not None:
            on_answer(execution.answer)


def validate_stdin(stdin: Stdin) -> bytes | AsyncIterable[bytes] | None:
    """Return input as bytes or as an async iterable of bytes.

    Raises:
        ConfigError: If it is of another type.
    """
    if stdin is None or isinstance(stdin, bytes):
        return stdin
    if isinstance(stdin, str):
        try:
            return stdin.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise ConfigError(f"stdin has a lone surrogate at {error.start}, which stands for no bytes") from error
    if isinstance(stdin, bytearray | memoryview):
        return bytes(stdin)
    if isinstance(stdin, AsyncIterable):
        return stdin
    raise ConfigError(f"stdin must be str, bytes, an async iterable of bytes or None, not {type(stdin).__name__}")


class _Execution:
    """One run. It lives as long as its call."""

    __slots__ = (
        "answer",
        "arriving_since",
        "cancel_scope",
        "conversation",
        "due",
        "feed",
        "kept",
        "on_output",
        "output",
        "params",
        "patience_s",
        "scope",
        "started",
        "timeout_s",
    )

    def __init__(
        self,
        scope: SlotScope,
        params: dict[str, Any],
        feed: bytes | AsyncIterable[bytes] | None,
        timeout_s: float | None,
        on_output: OnOutput | None,
    ) -> None:
        self.scope, self.params, self.feed, self.timeout_s, self.on_output = scope, params, feed, timeout_s, on_output
        self.output: dict[int, list[bytes]] = {}
        self.kept = 0
        self.started = False
        self.due = inf
        self.arriving_since: float | None = None
        self.patience_s = CANCEL_WAIT_S
        self.cancel_scope: anyio.CancelScope | None = None
        self.answer: dict[str, Any] | None = None

    async def run(self) -> RunResult:
        """Send the request and wait for the result, a failure or the timeout."""
        scope = self.scope
        scope.check()
        try:
            self.conversation = conversation = scope.channel.begin("exec.run", self.params)
            try:
                if self.feed is None and self.on_output is None:
                    await self._wait()
                else:
                    with scope.cancel_scope(self._overdue_in() + anyio.current_time()) as self.cancel_scope:
                        await self._wait_with_input()
                if self.answer is None:
                    await self._cancel_and_wait()
            except ProtocolError as error:
                scope.fail_channel(error)
                raise
            finally:
                if not conversation.answered:
                    await scope.give_up(conversation, self.patience_s)
            assert self.answer is not None
            merged = self.params["merge_stderr"]
            result = run_result(self.answer, self.output, merged=merged, request_id=conversation.id)
        except (RemoteError, *TRANSPORT_ERRORS) as error:
            if isinstance(error, RemoteError):
                self.answer = error.detail
            await scope.fail(error)
        if result.killed is not None:
            scope.check_receipt(result.killed)
        if self.answer.get("disk_nearly_full") is True:
            await scope.note_full_disk()
        return result

    def _overdue_in(self) -> float:
        return inf if self.timeout_s is None else self.timeout_s + RESULT_GRACE_S

    async def _wait(self) -> None:
        """Wait without running code of the caller, so that the channel can enforce the deadline."""
        scope, conversation = self.scope, self.conversation
        scope.watch(conversation, time.monotonic() + self._overdue_in())
        try:
            while self.answer is None:
                try:
                    await self._listen()
                except Overdue:
                    if time.monotonic() >= self.due or self.arriving_since is None:
                        return
                    scope.channel.set_deadline(conversation, self.due)
        finally:
            scope.unwatch(conversation)

    async def _wait_with_input(self) -> None:
        feed = self.feed
        if feed is None:
            await self._listen()
            return
        if isinstance(feed, bytes) and len(feed) <= self.scope.channel.facts.input_window:
            await self.conversation.send(feed)
            await self.conversation.end()
            await self._listen()
            return
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send, feed)
                await self._listen()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise first_exception(group) from group

    async def _send(self, feed: bytes | AsyncIterable[bytes]) -> None:
        if isinstance(feed, bytes):
            await self.conversation.send(feed)
        else:
            async for piece in feed:
                if not isinstance(piece, bytes | bytearray | memoryview):
                    raise ConfigError(f"stdin gave {type(piece).__name__}, not bytes")
                if self.conversation.finished:
                    return
                await self.conversation.send(bytes(piece))
        await self.conversation.end()

    async def _listen(self, *, last: bool = False) -> None:
        """Receive until the answer arrives. The timeout counts from the start of the command."""
        conversation = self.conversation
        while (item := await conversation.receive()) is not None:
            if type(item) is Data:
                channel = item.channel
                if 1 <= channel <= 3:
                    self.kept += len(item.data)
                    if self.kept > 3 * self.params["output_limit_bytes"] + (1 << 16):
                        raise ProtocolError("the sandbox sent more output than requested", request_id=conversation.id)
                    self.output.setdefault(channel, []).append(item.data)
                    if self.kept > SHORT_BYTES and self.timeout_s is not None:
                        self._await_the_rest()
                elif not last and self.on_output is not None and channel in LIVE_STREAMS:
                    result = self.on_output(LIVE_STREAMS[channel], item.data)
                    if inspect.isawaitable(result):
                        await result
            elif type(item) is Event and not self.started and not last and self.timeout_s is not None:
                self.started = True  # only once: a sandbox must not postpone the end forever
                self._restart_clock()
        self.answer = conversation.result()

    def _restart_clock(self) -> None:
        if self.cancel_scope is None:
            self.scope.channel.set_deadline(self.conversation, time.monotonic() + self._overdue_in())
            return
        # Not the obvious code: see docs/why-not-obvious.md ("Timers that are not set").
        deadline = anyio.current_time() + self._overdue_in()
        if deadline - self.cancel_scope.deadline > PROMPT_S:
            self.cancel_scope.deadline = deadline

    def _await_the_rest(self) -> None:
        """Extend the deadline of a result that arrives slowly: from now on only silence ends it."""
        now = time.monotonic()
        if self.arriving_since is None:
            self.arriving_since = now
        longest = self.arriving_since + RESULT_SILENCE_S + self.kept / MIN_BYTES_PER_S
        self.due = min(now + RESULT_SILENCE_S, longest)
        if self.cancel_scope is None:
            self.scope.channel.set_deadline(self.conversation, self.due)
        else:
            self.cancel_scope.deadline = anyio.current_time() + self.due - now

    async def _cancel_and_wait(self) -> None:
        """Cancel a command without a result, wait once more, then raise OutcomeUnknown."""
        conversation = self.conversation
        conversation.cancel_nowait()
        with anyio.move_on_after(CANCEL_GRACE_S, shield=True) as self.cancel_scope:
            await self._listen(last=True)
        if self.answer is not None:
            self.answer["timed_out"] = True
            return
        self.patience_s = 0.0
        silent = ChannelLost(
            f"the sandbox sent nothing for {RESULT_GRACE_S + CANCEL_GRACE_S:g} s after the command's timeout"
        )
        raise OutcomeUnknown(
            f"the command had a timeout of {self.timeout_s:g} s, and its result did not arrive",
            request_id=conversation.id,
        ) from silent


def first_exception(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception of a group, unwrapping nested groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
