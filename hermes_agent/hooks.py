"""Functions of the caller that run before a call, after a call, for a notice, and at the end of a turn."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from hermes_agent.episode import CallRecord
from hermes_agent.messages import Completion, ToolCall
from hermes_exec.aio.loop import raise_stray_cancellation
from hermes_exec.tools import ToolResult

T = TypeVar("T")


class Turn(NamedTuple):
    """A finished turn: its number (from 1), the model's completion, and its calls with their results."""

    number: int
    completion: Completion
    calls: tuple[CallRecord, ...]


BeforeCall = Callable[[ToolCall], Awaitable[str | None] | str | None]
AfterCall = Callable[[ToolCall, ToolResult], Awaitable[ToolResult | None] | ToolResult | None]
OnNotice = Callable[[str], Awaitable[str | None] | str | None]
OnTurn = Callable[[Turn], Awaitable[None] | None]


@dataclass(frozen=True)
class Hooks:
    """Functions, sync or async, that an `AgentLoop` calls.

    Hooks of a call run where their call runs: side by side for calls that run side by side
    (`AgentLoop(parallel_calls=…)`), else one after another, so that `before_call` runs when all earlier calls have
    ended.

    A hook that raises ends its episode (`finish="infra"`). If `after_call` raised or did not end, the record of its
    call withholds the result (`error_kind="interrupted"`, `state="ended"`), because the hook may have been about to
    remove a secret.

    Args:
        before_call: Gets a call, and may block it by returning a reason, which goes to the model in place of a result.
        after_call: Gets a call and its result, and may return another `ToolResult` in its place.
        on_notice: Gets the text of a notice of a background process, its output included, and may return another text.
        on_turn: Gets each turn when its calls have ended.
    """

    before_call: BeforeCall | None = None
    after_call: AfterCall | None = None
    on_notice: OnNotice | None = None
    on_turn: OnTurn | None = None


class HookError(Exception):
    """Raised when a hook raised (its error is `__cause__`), or returned a value of a wrong type."""


async def call_hook(
    name: str, hook: Callable[..., Awaitable[T | None] | T | None] | None, *arguments: object, kind: type[T]
) -> T | None:
    """Call a hook and return its result, an instance of `kind` or None. Without a hook return None.

    Raises:
        HookError: If the hook raises, or returns another type.
    """
    if hook is None:
        return None
    try:
        with raise_stray_cancellation("it"):
            result = hook(*arguments)
            if inspect.isawaitable(result):
                result = await result
    except Exception as error:
        raise HookError(f"the hook {name} raised {type(error).__name__}: {error}") from error
    if result is None or isinstance(result, kind):
        return result
    raise HookError(f"the hook {name} returned {type(result).__name__}, not {kind.__name__} or None")
