"""The tool calls of one turn: in parallel, with their results in order and every failure recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import anyio
import anyio.lowlevel
from anyio.from_thread import BlockingPortal

from hermes_agent.history import History
from hermes_agent.messages import Answer, ToolCall
from hermes_exec.errors import ErrorCause, ExecError

_NO_CALLS_LEFT = "The number of tool calls is used up; this one was not made. Give your final answer now."


class Result(Protocol):
    """What the loop needs of a tool's result; `hermes_exec.tools.ToolResult` has it."""

    @property
    def content(self) -> str: ...  # noqa: D102
    @property
    def ok(self) -> bool: ...  # noqa: D102
    @property
    def error_kind(self) -> str | None: ...  # noqa: D102
    @property
    def duration_s(self) -> float: ...  # noqa: D102


class Tools(Protocol):
    """What the loop needs of a toolbox; `hermes_exec.tools.Toolbox` has it.

    Where it also has `async fit_turn(results) -> results`, that is called with all results of a turn, to keep them
    within the budget of a turn; where it has `async notices()`, what that returns is told to the model before its next
    turn (the `text` of each).
    """

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]: ...  # noqa: D102
    async def call(self, name: str, arguments: str, call_id: str | None = None) -> Result: ...  # noqa: D102


class BlockingTools(Protocol):
    """A toolbox of the blocking kind: it knows the async one, and the portal to its event loop."""

    @property
    def wrapped(self) -> Tools: ...  # noqa: D102
    @property
    def portal(self) -> BlockingPortal: ...  # noqa: D102


class _Failed(Exception):
    """The slot or this library failed; the calls under way are of no use any more."""

    def __init__(self, cause: ErrorCause) -> None:
        super().__init__(cause)
        self.cause = cause


async def call_tools(tools: Tools, history: History, calls_left: int | None, parallel: int) -> ErrorCause | None:
    """Make the calls that the last turn asked for and write their results into the history.

    Calls beyond `calls_left` are refused. Returns None, or whose fault it is when the slot or this library failed: then
    the calls under way are ended.
    """
    calls = history.pending
    answers: list[Answer | None] = [None] * len(calls)
    results: dict[int, Result] = {}
    failures: list[ErrorCause] = []
    limiter = anyio.Semaphore(parallel)

    async def one(index: int, call: ToolCall) -> None:
        async with limiter:
            try:
                outcome = await _made(tools, history, call)
            except _Failed as failure:
                failures.append(failure.cause)
                group.cancel_scope.cancel()
            else:
                answers[index] = outcome if isinstance(outcome, Answer) else _answer(outcome)
                if not isinstance(outcome, Answer):
                    results[index] = outcome

    try:
        async with anyio.create_task_group() as group:
            for index, call in enumerate(calls):
                answers[index] = _not_made(call, index, calls_left)
                if answers[index] is None:
                    group.start_soon(one, index, call)
                    # Calls of one turn that share a session queue up for it in this order, on trio too.
                    await anyio.lowlevel.checkpoint()
        if not failures:
            for index, result in (await _fitted(tools, results)).items():
                answers[index] = _answer(result)
    except ExecError as error:
        history.add_error("infra", error)
        failures.append(error.cause)
    finally:
        # Also on cancellation: the calls that ended have had their effects.
        for call, answer in zip(calls, answers, strict=True):
            history.add_answer(call, answer or _refused("ended", "The episode ended before this call did."))
    return failures[0] if failures else None


async def add_notices(tools: Tools, history: History) -> ErrorCause | None:
    """Add what background processes have to tell, as one user message. Returns as `call_tools`."""
    notices = getattr(tools, "notices", None)
    if notices is None:
        return None
    try:
        heard = await notices()
    except ExecError as error:
        history.add_error("infra", error)
        return error.cause
    if heard:
        history.messages.append({"role": "user", "content": "\n\n".join(str(notice.text) for notice in heard)})
    return None


async def _made(tools: Tools, history: History, call: ToolCall) -> Result | Answer:
    try:
        return await tools.call(call.name, call.arguments, call_id=call.id)
    except ExecError as error:
        if error.cause is not ErrorCause.POLICY:
            history.add_error("infra", error)
            raise _Failed(error.cause) from error
        history.add_error("tool", error)
        message = json.dumps({"error": f"{type(error).__name__}: {error}"}, ensure_ascii=False)
        return Answer(message, ok=False, error_kind=type(error).__name__)
    except Exception as error:
        history.add_bug("infra", error)
        raise _Failed(ErrorCause.INFRA) from error


async def _fitted(tools: Tools, results: Mapping[int, Result]) -> dict[int, Result]:
    fit_turn = getattr(tools, "fit_turn", None)
    if fit_turn is None or not results:
        return {}
    order = sorted(results)
    return dict(zip(order, await fit_turn([results[index] for index in order]), strict=True))


def _not_made(call: ToolCall, index: int, calls_left: int | None) -> Answer | None:
    if call.error is not None:
        return _refused("malformed_call", call.error)
    return _refused("no_calls_left", _NO_CALLS_LEFT) if calls_left is not None and index >= calls_left else None


def _answer(result: Result) -> Answer:
    return Answer(result.content, result.ok, result.error_kind, result.duration_s)


def _refused(kind: str, message: str) -> Answer:
    text = json.dumps({"error": message, "error_kind": kind}, ensure_ascii=False)
    return Answer(text, ok=False, error_kind=kind, executed=False)
