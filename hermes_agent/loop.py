"""The agent: a model, a toolbox, and the loop between them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, overload

import anyio

from hermes_agent.episode import Episode, Finish
from hermes_agent.errors import ContextExceeded, ModelError
from hermes_agent.history import History
from hermes_agent.messages import Completion, Message, checked_completion
from hermes_agent.models.base import Model
from hermes_agent.turn import BlockingTools, Tools, add_notices, call_tools
from hermes_exec.aio.portal import call
from hermes_exec.errors import ConfigError, ErrorCause

LAST_WORDS = "You cannot call any more tools. Give your final answer now, from what you know."
"""What the model is told when its turns or its tool calls are used up, before its closing answer."""

ToolsT_co = TypeVar("ToolsT_co", bound="Tools | BlockingTools", covariant=True)


class _End(NamedTuple):
    finish: Finish
    cause: ErrorCause


class AgentLoop(Generic[ToolsT_co]):
    """Lets a model work with a toolbox until it answers without asking for a tool.

    `max_turns` bounds the completions (default 30), `max_tool_calls` all calls of an episode (default None: no bound;
    calls over it are answered with an error). With `final_answer=True` the model is asked once more when either is
    used up, without tools, for its closing answer, which is not a turn. `temperature` (default 1.0),
    `max_tokens` (of one completion; default None: the model's own) and `sampling` (further parameters) go to the
    model. The calls of a turn run in parallel, at most `parallel_calls` at a time (default 16); their results are in
    the order of the calls.

    One loop runs one episode at a time. With a toolbox of the blocking kind `run` blocks and returns the Episode
    itself. Raises ConfigError for an object that is not a model or a toolbox, and for impossible bounds.
    """

    def __init__(
        self,
        model: Model,
        toolbox: ToolsT_co,
        max_turns: int = 30,
        max_tool_calls: int | None = None,
        temperature: float | None = 1.0,
        max_tokens: int | None = None,
        *,
        sampling: Mapping[str, Any] | None = None,
        final_answer: bool = False,
        parallel_calls: int = 16,
    ) -> None:
        tools = getattr(toolbox, "wrapped", toolbox)
        for part, given, method in (("model", model, "complete"), ("toolbox", tools, "call")):
            if not callable(getattr(given, method, None)):
                raise ConfigError(f"{part} must have a method {method!r}, and {type(given).__name__} has none")
        for name, bound in (("max_turns", max_turns), ("parallel_calls", parallel_calls), ("max_tokens", max_tokens)):
            if bound is not None and bound < 1:
                raise ConfigError(f"{name} is at least 1, not {bound}")
        if temperature is not None and not 0 <= temperature < math.inf:
            raise ConfigError(f"temperature is 0 or more, not {temperature}")
        if max_tool_calls is not None and max_tool_calls < 0:
            raise ConfigError(f"max_tool_calls is at least 0, not {max_tool_calls}")
        self.model, self.toolbox = model, toolbox
        self.max_turns, self.max_tool_calls = max_turns, max_tool_calls
        self._final_answer, self._parallel_calls = final_answer, parallel_calls
        self._sampling = {"temperature": temperature, "max_tokens": max_tokens, **(sampling or {})}
        self._scope: anyio.CancelScope | None = None

    @overload
    def run(self: AgentLoop[BlockingTools], messages: Sequence[Message] | str) -> Episode: ...
    @overload
    def run(self: AgentLoop[Tools], messages: Sequence[Message] | str) -> Awaitable[Episode]: ...
    def run(self: AgentLoop[Any], messages: Sequence[Message] | str) -> Episode | Awaitable[Episode]:
        """Run one episode from these messages (a text: one user message) and return it, whatever ended it.

        Errors of the model, of the slot and of this library end up in the Episode; only the caller's own cancellation
        passes through, and SlotClosed where the pool of a blocking toolbox has been left before.
        """
        begin: list[Message] = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        portal, tools = getattr(self.toolbox, "portal", None), getattr(self.toolbox, "wrapped", self.toolbox)
        if portal is not None:
            return call(portal, partial(self._episode, tools, begin))
        return self._episode(tools, begin)

    def cancel(self) -> None:
        """End the episode under way with `finish="cancelled"`; to be called from the event loop that it runs in.
        Without one: nothing.
        """
        if self._scope is not None:
            self._scope.cancel()

    async def _episode(self, tools: Tools, begin: Sequence[Message]) -> Episode:
        if self._scope is not None:
            raise RuntimeError("this AgentLoop already runs an episode; make one loop for each")
        history = History(begin, [dict(schema) for schema in tools.schemas])
        end = _End("cancelled", ErrorCause.CANCELLED)
        try:
            with anyio.CancelScope() as self._scope:
                end = await self._turns(tools, history)
        finally:
            self._scope = None
        return history.episode(end.finish, end.cause)

    async def _turns(self, tools: Tools, history: History) -> _End:
        while history.turns < self.max_turns:
            completion = await self._complete(history)
            if isinstance(completion, _End):
                return completion
            history.add_completion(completion)
            if not completion.tool_calls:
                cut = completion.finish_reason == "length"
                return _End("max_tokens", ErrorCause.BUDGET) if cut else _End("answered", ErrorCause.POLICY)
            failure = await call_tools(tools, history, self._calls_left(history), self._parallel_calls)
            failure = failure or await add_notices(tools, history)
            if failure is not None:
                return _End("infra", failure)
            if history.refused:
                break
        if self._final_answer:
            await self._close(history)
        return _End("max_turns", ErrorCause.BUDGET)

    async def _complete(self, history: History) -> Completion | _End:
        try:
            return checked_completion(await self.model.complete(history.messages, history.tools, **self._sampling))
        except ContextExceeded as error:
            history.add_error("model", error)
            return _End("context", error.cause)
        except ModelError as error:
            history.add_error("model", error)
            return _End("model_error", error.cause)
        except Exception as error:  # noqa: BLE001 - whatever a model raises ends its episode only
            history.add_bug("model", error)
            return _End("model_error", ErrorCause.INFRA)

    async def _close(self, history: History) -> None:
        """Ask for the closing answer. The episode ends as `max_turns` whether the answer comes or not."""
        question: Message = {"role": "user", "content": LAST_WORDS}
        try:
            sampling = {**self._sampling, "tool_choice": "none"}
            given = await self.model.complete([*history.messages, question], history.tools, **sampling)
            completion = checked_completion(given)
        except ModelError as error:
            history.add_error("model", error)
        except Exception as error:  # noqa: BLE001 - whatever a model raises ends its episode only
            history.add_bug("model", error)
        else:
            history.add_closing(question, completion)

    def _calls_left(self, history: History) -> int | None:
        return None if self.max_tool_calls is None else max(0, self.max_tool_calls - len(history.calls))
