"""What a caller may do at three places of an episode: before a call, after a call, and at the end of a turn."""

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
    """A turn that has ended: its number (from 1), what the model said, and its calls with their results."""

    number: int
    completion: Completion
    calls: tuple[CallRecord, ...]


BeforeCall = Callable[[ToolCall], Awaitable[str | None] | str | None]
AfterCall = Callable[[ToolCall, ToolResult], Awaitable[ToolResult | None] | ToolResult | None]
OnNotice = Callable[[str], Awaitable[str | None] | str | None]
OnTurn = Callable[[Turn], Awaitable[None] | None]


@dataclass(frozen=True)
class Hooks:
    """Functions, sync or async, that an `AgentLoop` calls. One that raises ends its episode (`finish="infra"`). The
    record of a call whose `after_call` raised or did not end withholds the result (`error_kind="interrupted"`), because
    the hook may have been about to take a secret out of it; `state` is `ended`.

    `before_call(call)` may block the call: a text that it returns is the reason, which the model is told in place of a
    result. `after_call(call, result)` may return another `ToolResult` in the place of the result. Both run where their
    call runs: side by side for calls that run side by side (`AgentLoop(parallel_calls=…)`), else one after another, so
    that `before_call` runs when all earlier calls have ended. `on_notice(text)` may return another text for what a
    background process has to tell, its output included. `on_turn(turn)` sees each turn when its calls have ended.
    """

    before_call: BeforeCall | None = None
    after_call: AfterCall | None = None
    on_notice: OnNotice | None = None
    on_turn: OnTurn | None = None


class HookError(Exception):
    """Raised when a hook raised (`__cause__` is what it raised), or gave what is of no use."""


async def call_hook(
    name: str, hook: Callable[..., Awaitable[T | None] | T | None] | None, *arguments: object, kind: type[T]
) -> T | None:
    """What a hook says to this, which is of this kind or None; None where there is no hook. Raises HookError when it
    raises, or says something else.
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
    raise HookError(f"the hook {name} gave {type(result).__name__}, not {kind.__name__} or None")
