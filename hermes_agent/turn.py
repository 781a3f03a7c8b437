"""The tool calls of one turn: run in order, reads side by side, with every failure recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import anyio
import anyio.lowlevel

from hermes_agent.history import History
from hermes_agent.hooks import Hooks, call_hook
from hermes_agent.messages import CallAnswer, CallState, ToolCall
from hermes_agent.parsers.json_text import dump
from hermes_exec.aio.tasks import PlainTaskGroup
from hermes_exec.errors import ConfigError, ErrorCause, ExecError
from hermes_exec.tools import Notice, Toolbox, ToolResult

R = TypeVar("R")
ParallelCalls = Literal["safe", "all"] | int
"""Which calls of one turn run at the same time.

`safe`: neighbouring calls that only read run side by side; every other call runs alone, in the order of the calls.
`all`: all at once. Both run at most 16 calls at a time. A number: all at once, at most this many; 1 is one after
another.
"""

_AT_ONCE = 16
_NO_CALLS_LEFT = "The number of tool calls is used up; this one was not made. Give your final answer now."


class Tools(Protocol):
    """The part of a toolbox that the loop needs. `hermes_exec.tools.Toolbox` implements it."""

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        """The function schemas for the model. The schema of a host tool has the key `runs_on`."""
        ...

    async def call(self, name: str, arguments: str, call_id: str | None = None) -> ToolResult:
        """Run one call and return its result. Mistakes of the model are results; an ExecError ends the episode."""
        ...

    async def fit_turn(self, results: Sequence[ToolResult]) -> Sequence[ToolResult]:
        """Return all results of a turn, shortened to the budget of a turn."""
        ...

    async def notices(self) -> Sequence[Notice]:
        """Return the notices for the model before its next turn."""
        ...

    def forget_reads(self) -> None:
        """Forget earlier results, because they are no longer in the model's context."""
        ...

    # Optional: `reads_only(name: str) -> bool`, whether the tool changes nothing. Without it no tool only reads.


@runtime_checkable
class BlockingTools(Protocol):
    """A blocking toolbox. It wraps the async toolbox and works in an event loop of its own."""

    @property
    def wrapped(self) -> Tools:
        """The async toolbox."""
        ...

    def run_async(self, work: Callable[[], Awaitable[R]]) -> R:
        """Run async work in the toolbox's event loop, and wait for the result."""
        ...


class _TurnFailure(Exception):
    """Raised when the slot, a hook or this library failed. The other calls of the turn are cancelled."""

    def __init__(self, cause: ErrorCause) -> None:
        super().__init__(cause)
        self.cause = cause


class ToolTurns:
    """Runs the calls of an episode, turn by turn.

    Args:
        tools: The toolbox.
        hooks: The hooks around each call.
        parallel_calls: Which calls of a turn run at the same time.
        max_calls: The most calls of the episode (None: no bound).
        max_seconds: The most seconds in calls of the episode (None: no bound).

    Raises:
        ConfigError: If `parallel_calls` has none of its values.
    """

    def __init__(
        self,
        tools: Tools,
        hooks: Hooks,
        *,
        parallel_calls: ParallelCalls,
        max_calls: int | None,
        max_seconds: float | None,
    ) -> None:
        self._tools, self._hooks = tools, hooks
        self._parallel_calls = parse_parallel_calls(parallel_calls)
        self._max_calls, self._max_seconds = max_calls, max_seconds

    async def run_turn(self, history: History) -> ErrorCause | None:
        """Run the pending calls, and add their results and the notices of background processes to the history.

        Returns:
            None, or the cause if the slot, a hook or this library failed. The other calls of the turn are then
            cancelled.
        """
        left_s = None if self._max_seconds is None else max(0.0, self._max_seconds - history.tool_seconds)
        started = anyio.current_time()
        if isinstance(self._tools, Toolbox):
            self._tools.around_calls_of_code = partial(self._call_from_code, history)
        try:
            with anyio.move_on_after(left_s):
                await self._run_calls(history)
            if isinstance(self._tools, Toolbox):
                await self._tools.check_disk()
            if left_s is not None:
                left_s -= anyio.current_time() - started
            notices: list[str] = []
            with anyio.move_on_after(left_s):
                notices += [await self._filter_notice(str(notice.text)) for notice in await self._tools.notices()]
        except _TurnFailure as failure:
            return failure.cause
        except Exception as error:  # noqa: BLE001 - whatever a toolbox raises ends its episode only
            return history.add_failure(error)
        finally:
            history.tool_seconds += anyio.current_time() - started
        if notices:
            history.add_notices(notices)
        return None

    async def _filter_notice(self, notice: str) -> str:
        replacement = await call_hook("on_notice", self._hooks.on_notice, notice, kind=str)
        return notice if replacement is None else replacement

    async def _run_calls(self, history: History) -> None:
        calls = history.pending
        calls_left = (
            None if self._max_calls is None else max(0, self._max_calls - len(history.calls) - history.calls_of_code)
        )
        answers: list[CallAnswer | None] = [None] * len(calls)
        results: dict[int, ToolResult] = {}
        progress: dict[int, _CallProgress] = {}

        async def run_call(index: int, own: _CallProgress) -> None:
            try:
                outcome = await self._execute(history, calls[index], history.result_ids[index], own)
            finally:
                own.release()
            if isinstance(outcome, ToolResult):
                results[index] = outcome
            answers[index] = outcome if isinstance(outcome, CallAnswer) else _answer(outcome)

        try:
            for index, call in enumerate(calls):
                answers[index] = _check_call(call, index, calls_left)
            for side_by_side in self._segments(calls, [answer is None for answer in answers]):
                order = _CallOrder(_AT_ONCE if isinstance(self._parallel_calls, str) else self._parallel_calls)
                async with PlainTaskGroup() as group:
                    for index in side_by_side:
                        progress[index] = await order.acquire()
                        group.start_soon(run_call, index, progress[index])
            indexes_in_order = sorted(results)
            fitted = (
                await self._tools.fit_turn([results[index] for index in indexes_in_order]) if indexes_in_order else ()
            )
            for index, result in zip(indexes_in_order, fitted, strict=True):
                answers[index] = _answer(result)
        finally:
            # Also on cancellation, because the finished calls have had their effects.
            for index, (call, answer) in enumerate(zip(calls, answers, strict=True)):
                history.add_answer(call, answer or _answer_unfinished(progress.get(index)))

    def _segments(self, calls: Sequence[ToolCall], runs: Sequence[bool]) -> Iterator[list[int]]:
        """Yield lists of indexes of calls: the calls of a list run at the same time, list after list."""
        indexes = [index for index, does_run in enumerate(runs) if does_run]
        if self._parallel_calls != "safe":
            yield indexes
            return
        for reads, neighbours in groupby(indexes, key=lambda index: self._reads_only(calls[index].name)):
            if reads:
                yield list(neighbours)
            else:
                yield from ([index] for index in neighbours)

    def _reads_only(self, name: str) -> bool:
        reads_only = getattr(self._tools, "reads_only", None)
        return reads_only is not None and reads_only(name) is True

    async def _execute(
        self, history: History, call: ToolCall, call_id: str, progress: _CallProgress
    ) -> ToolResult | CallAnswer:
        async def make() -> ToolResult:
            progress.begun_at = anyio.current_time()
            progress.result = await self._tools.call(call.name, call.arguments, call_id=call_id)
            return progress.result

        try:
            outcome = await self._call_with_hooks(call, make, progress.begin)
        except Exception as error:
            if not isinstance(error, ExecError) or error.cause is not ErrorCause.POLICY:
                raise _TurnFailure(history.add_failure(error)) from error
            history.add_error("tool", error)
            message = dump({"error": f"{type(error).__name__}: {error}"})
            return CallAnswer(message, ok=False, error_kind=type(error).__name__)
        return _error_answer("blocked", outcome) if isinstance(outcome, str) else outcome

    async def _call_with_hooks(
        self,
        call: ToolCall,
        make: Callable[[], Awaitable[ToolResult]],
        begin: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
    ) -> ToolResult | str:
        """Return the result of a call with the hooks around it, or the reason why `before_call` blocks it.

        `begin` waits for the turn of the call.
        """
        reason = await call_hook("before_call", self._hooks.before_call, call, kind=str)
        await begin()
        if reason is not None:
            return reason
        result = await make()
        change = await call_hook("after_call", self._hooks.after_call, call, result, kind=ToolResult)
        return result if change is None else _apply_change(result, change)

    async def _call_from_code(
        self,
        history: History,
        name: str,
        arguments: Mapping[str, object],
        make: Callable[[], Awaitable[ToolResult]],
    ) -> ToolResult:
        """Run a call from the code of `execute_code`, with the same hooks and the same bound as a call of the model."""
        before = len(history.calls) + len(history.pending) + history.calls_of_code
        if self._max_calls is not None and before >= self._max_calls:
            return _refusal_result(name, "no_calls_left", _NO_CALLS_LEFT)
        history.calls_of_code += 1
        call = ToolCall(f"code_{history.calls_of_code}", name, dump(arguments))
        outcome = await self._call_with_hooks(call, make)
        return _refusal_result(name, "blocked", outcome) if isinstance(outcome, str) else outcome


class _CallOrder:
    """Starts calls that run at the same time: at most `at_once`, each after the previous call has begun."""

    def __init__(self, at_once: int) -> None:
        self._free = anyio.Semaphore(at_once)
        self._last = anyio.Event()
        self._last.set()

    async def acquire(self) -> _CallProgress:
        """Wait until a call may run, and return its progress."""
        await self._free.acquire()
        progress = _CallProgress(self._last, self._free)
        self._last = progress.begun
        return progress


class _CallProgress:
    """The progress of one call among those that run at the same time."""

    def __init__(self, before: anyio.Event, free: anyio.Semaphore) -> None:
        self._before, self._free = before, free
        self.begun = anyio.Event()
        self.begun_at: float | None = None
        self.result: ToolResult | None = None

    async def begin(self) -> None:
        """Wait until the previous call has begun, or was blocked in its turn."""
        await self._before.wait()
        self.begun.set()

    def release(self) -> None:
        """Let another call run."""
        self._free.release()


def parse_parallel_calls(value: object) -> ParallelCalls:
    """Return a value of `parallel_calls`. A number may be text, as on the command line.

    Raises:
        ConfigError: If the value is invalid.
    """
    if value == "safe" or value == "all":
        return value
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, int) and not isinstance(number, bool) and number >= 1:
        return number
    raise ConfigError(f"parallel_calls is 'safe', 'all' or a number from 1, not {value!r}")


def _refusal_result(name: str, kind: str, message: str) -> ToolResult:
    data: dict[str, object] = {"error": message, "error_kind": kind}
    return ToolResult(name, dump(data), data, False, kind, 0.0, "")


def _apply_change(result: ToolResult, change: ToolResult) -> ToolResult:
    """Return the result of `after_call`. Its removals hold also for the data that is spilled."""
    if change.content != result.content and change.data == result.data:
        return replace(change, data={"content": change.content})
    return change


def _check_call(call: ToolCall, index: int, calls_left: int | None) -> CallAnswer | None:
    if call.error is not None:
        return _error_answer("malformed_call", call.error)
    return _error_answer("no_calls_left", _NO_CALLS_LEFT) if calls_left is not None and index >= calls_left else None


def _answer(result: ToolResult) -> CallAnswer:
    return CallAnswer(
        result.content,
        result.ok,
        result.error_kind,
        result.duration_s,
        images=result.images,
        shows_images=result.shows_images,
    )


def _error_answer(kind: str, message: str, state: CallState = "not_begun", duration_s: float = 0.0) -> CallAnswer:
    text = dump({"error": message, "error_kind": kind})
    return CallAnswer(text, ok=False, error_kind=kind, duration_s=duration_s, state=state)


def _answer_unfinished(progress: _CallProgress | None) -> CallAnswer:
    """Return the answer to a call that had no result when its episode ended."""
    if progress is None or progress.begun_at is None:
        return _error_answer("not_begun", "The episode ended before this call began.")
    if progress.result is None:
        message = "The episode ended while this call ran. It may have had effects."
        return _error_answer("interrupted", message, "begun", anyio.current_time() - progress.begun_at)
    # `after_call` did not pass the result on: it may have been about to remove a secret.
    message = "The call ended, and the episode ended before its result was passed on."
    return _error_answer("interrupted", message, "ended", progress.result.duration_s)
