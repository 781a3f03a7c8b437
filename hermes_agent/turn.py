"""The tool calls of one turn: in parallel, with their results in order, and nothing that went wrong left unsaid."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import anyio
import anyio.lowlevel
from anyio.from_thread import BlockingPortal

from hermes_agent.calls import ToolCall
from hermes_agent.history import History
from hermes_exec.errors import ErrorCause, ExecError


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
    """What the loop needs of a toolbox; `hermes_exec.tools.Toolbox` has it."""

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]: ...  # noqa: D102
    async def call(self, name: str, arguments: str, call_id: str | None = None) -> Result: ...  # noqa: D102


class BlockingTools(Protocol):
    """A toolbox of the blocking kind: it knows the async one, and the portal to its event loop."""

    @property
    def wrapped(self) -> Tools: ...  # noqa: D102
    @property
    def portal(self) -> BlockingPortal: ...  # noqa: D102


class Answer(NamedTuple):
    """What a call is answered with. `executed` is False when it never reached the toolbox."""

    content: str
    ok: bool
    error_kind: str | None
    duration_s: float = 0.0
    executed: bool = True


async def call_tools(tools: Tools, history: History, calls_left: int | None, parallel: int) -> ErrorCause | None:
    """Make the calls that the last turn asked for and write their results into the history.

    Calls beyond `calls_left` are refused. Returns None, or whose fault it is when the slot or this library failed:
    then the calls under way are ended.
    """
    calls = history.pending
    answers: list[Answer | None] = [None] * len(calls)
    failures: list[ErrorCause] = []
    limiter = anyio.Semaphore(parallel)

    async def one(index: int, call: ToolCall) -> None:
        async with limiter:
            try:
                result = await tools.call(call.name, call.arguments, call_id=call.id)
                answers[index] = Answer(result.content, result.ok, result.error_kind, result.duration_s)
            except ExecError as error:
                history.add_error("tool" if error.cause is ErrorCause.POLICY else "infra", error)
                answers[index] = _failed(error)
                if error.cause is not ErrorCause.POLICY:
                    failures.append(error.cause)
                    group.cancel_scope.cancel()
            except Exception as error:  # noqa: BLE001 - a bug ends the episode unscored, not the run
                history.add_bug("infra", error)
                answers[index] = _failed(error)
                failures.append(ErrorCause.INFRA)
                group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            for index, call in enumerate(calls):
                if call.error is not None:
                    answers[index] = _refused("malformed_call", call.error)
                elif calls_left is not None and index >= calls_left:
                    answers[index] = _refused(
                        "no_calls_left",
                        "The number of tool calls is used up; this one was not made. Give your final answer now.",
                    )
                else:
                    group.start_soon(one, index, call)
                    # Calls of one turn that share a session take their places in its queue in this order, on trio too.
                    await anyio.lowlevel.checkpoint()
    finally:
        # Also when the episode is called off: the calls that ended have happened.
        for call, answer in zip(calls, answers, strict=True):
            history.add_answer(call, answer or _refused("ended", "The episode ended before this call did."))
    return failures[0] if failures else None


def _refused(kind: str, message: str) -> Answer:
    return Answer(
        json.dumps({"error": message, "error_kind": kind}, ensure_ascii=False),
        ok=False,
        error_kind=kind,
        executed=False,
    )


def _failed(error: Exception) -> Answer:
    message = f"{type(error).__name__}: {error}"
    return Answer(json.dumps({"error": message}, ensure_ascii=False), ok=False, error_kind=type(error).__name__)
