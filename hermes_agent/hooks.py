"""What a caller may do at three places of an episode: before a call, after a call, and at the end of a turn."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from hermes_agent.episode import CallRecord
from hermes_agent.messages import Completion, ToolCall
from hermes_exec.tools import ToolResult

T = TypeVar("T")


class Turn(NamedTuple):
    """A turn that has ended: its number (from 1), what the model said, and its calls with their results."""

    number: int
    completion: Completion
    calls: tuple[CallRecord, ...]


BeforeCall = Callable[[ToolCall], Awaitable[str | None] | str | None]
AfterCall = Callable[[ToolCall, ToolResult], Awaitable[ToolResult | None] | ToolResult | None]
OnTurn = Callable[[Turn], Awaitable[None] | None]


@dataclass(frozen=True)
class Hooks:
    """Functions, sync or async, that an `AgentLoop` calls. One that raises ends its episode (`finish="infra"`).

    `before_call(call)` may block the call: a text that it returns is the reason, which the model is told in place of a
    result. `after_call(call, result)` may return another `ToolResult` in the place of the result. Calls of a turn run
    in parallel, and so do these. `on_turn(turn)` sees each turn when its calls have ended.
    """

    before_call: BeforeCall | None = None
    after_call: AfterCall | None = None
    on_turn: OnTurn | None = None


class HookError(Exception):
    """Raised when a hook raised; `__cause__` is what it raised."""


async def ask(name: str, hook: Callable[..., T | Awaitable[T]] | None, *given: object) -> T | None:
    """What a hook says to this; None where there is none. Raises HookError when it raises."""
    if hook is None:
        return None
    try:
        said = hook(*given)
        return await said if inspect.isawaitable(said) else said
    except Exception as error:
        raise HookError(f"the hook {name} raised {type(error).__name__}: {error}") from error
