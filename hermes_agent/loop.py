"""The agent: a model, a toolbox, and the loop between them."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, overload

import anyio

from hermes_agent.context import Context
from hermes_agent.context_summary import EpisodeSummary, SummariseOldTurns
from hermes_agent.deadline import episode_deadline
from hermes_agent.episode import Episode, Finish
from hermes_agent.errors import ContentFiltered, ContextExceeded, ModelError
from hermes_agent.history import History
from hermes_agent.hooks import HookError, Hooks, call_hook
from hermes_agent.messages import Completion, Message, validate_completion
from hermes_agent.models.base import Model, ModelSession, SessionModel, open_session
from hermes_agent.turn import BlockingTools, ParallelCalls, Tools, ToolTurns
from hermes_exec.errors import ConfigError, ErrorCause

logger = logging.getLogger(__name__)
FINAL_ANSWER_NOTICE = "You cannot call any more tools. Give your final answer now, from what you know."
"""The notice to the model before its closing answer, when its turns or its tool calls are used up."""

_CLOSE_S = 5.0
_RESERVED = frozenset({"messages", "tools"})
_TOOLBOX_METHODS = ("call", "fit_turn", "notices", "forget_reads")
ToolsT_co = TypeVar("ToolsT_co", bound="Tools | BlockingTools", covariant=True)


class _End(NamedTuple):
    finish: Finish
    cause: ErrorCause


_OUT_OF_BUDGET = _End("budget", ErrorCause.BUDGET)


class AgentLoop(Generic[ToolsT_co]):
    """Lets a model work with a toolbox until it answers without calling a tool.

    One loop runs one episode at a time. With a blocking toolbox `run` blocks and returns the Episode itself.

    Args:
        model: The model, or a model that makes a session for each episode.
        toolbox: The tools, async or blocking.
        max_turns: The most completions of an episode.
        max_tool_calls: The most tool calls of an episode. Calls beyond it are answered with an error. None: no bound.
        temperature: Sampling temperature.
        max_tokens: The most tokens of one completion. None: the model's own default.
        sampling: Further sampling parameters for the model.
        final_answer: Whether to prompt the model once more for a closing answer when turns or calls are used up. The
            closing answer is not a turn, and is dropped if it has calls.
        parallel_calls: The calls of a turn that run at the same time. With "safe", neighbouring calls that only read
            run side by side, and every other call runs alone, in order. With "all", all run at once. Both run at most
            16 at a time. A number means all at once, at most this many; 1 is one after another. Calls begin in the
            order in which the model wrote them, so that commands of one shell keep it, and results are in that order
            too.
        deadline_s: The most seconds of an episode. Outages of the model's endpoint do not count. None: no bound.
        max_tokens_total: The most tokens of an episode, prompts and completions. None: no bound.
        max_cost: The highest cost of an episode, as charged by the provider. None: no bound.
        max_tool_seconds: The most seconds of an episode in tool calls. None: no bound.
        hooks: Functions that see and change calls.
        context: Selects the messages that the model sees: a function of all messages, or `SummariseOldTurns`. None:
            all.

    Raises:
        ConfigError: If `model` is not a model, `toolbox` is not a toolbox, or a bound is impossible.
    """

    def __init__(
        self,
        model: Model | SessionModel,
        toolbox: ToolsT_co,
        max_turns: int = 30,
        max_tool_calls: int | None = None,
        temperature: float | None = 1.0,
        max_tokens: int | None = None,
        *,
        sampling: Mapping[str, Any] | None = None,
        final_answer: bool = False,
        parallel_calls: ParallelCalls = "safe",
        deadline_s: float | None = None,
        max_tokens_total: int | None = None,
        max_cost: float | None = None,
        max_tool_seconds: float | None = None,
        hooks: Hooks | None = None,
        context: Context | SummariseOldTurns | None = None,
    ) -> None:
        tools = toolbox.wrapped if isinstance(toolbox, BlockingTools) else toolbox
        _check_parts(model, tools)
        function = None if isinstance(context, SummariseOldTurns) else context
        for name, part in (("context", function), *vars(hooks or Hooks()).items()):
            if part is not None and not callable(part):
                raise ConfigError(f"{name} is a function, not {part!r}")
        if reserved := _RESERVED.intersection(sampling or ()):
            raise ConfigError(f"sampling has {', '.join(sorted(reserved))}, which the loop sets itself")
        _check_least(1, max_turns=max_turns, max_tokens=max_tokens)
        _check_least(0, max_tool_calls=max_tool_calls, temperature=temperature)
        _check_above_zero(
            deadline_s=deadline_s,
            max_tokens_total=max_tokens_total,
            max_cost=max_cost,
            max_tool_seconds=max_tool_seconds,
        )
        self.model, self.toolbox = model, toolbox
        self.max_turns, self.max_tool_calls = max_turns, max_tool_calls
        self._sampling = {"temperature": temperature, "max_tokens": max_tokens, **(sampling or {})}
        self._final_answer, self._context, self._hooks = final_answer, function, hooks or Hooks()
        self._summarise = context if isinstance(context, SummariseOldTurns) else None
        self._summary: EpisodeSummary | None = None
        """The context of the running episode, if it is summarised."""
        self._deadline_s, self._max_tokens_total = deadline_s, max_tokens_total
        self._max_cost, self._max_tool_seconds = max_cost, max_tool_seconds
        self._tools = tools
        self._tool_turns = ToolTurns(
            tools,
            self._hooks,
            parallel_calls=parallel_calls,
            max_calls=max_tool_calls,
            max_seconds=max_tool_seconds,
        )
        self._scope: anyio.CancelScope | None = None

    @overload
    def run(self: AgentLoop[BlockingTools], messages: Sequence[Message] | str) -> Episode: ...
    @overload
    def run(self: AgentLoop[Tools], messages: Sequence[Message] | str) -> Awaitable[Episode]: ...
    def run(self: AgentLoop[Any], messages: Sequence[Message] | str) -> Episode | Awaitable[Episode]:
        """Run one episode from these messages (a text: one user message) and return it, whatever ended it.

        Errors of the model, of the slot, of hooks and of this library are recorded in the Episode. Only the caller's
        own cancellation propagates, and SlotClosed if the pool of a blocking toolbox was closed before.
        """
        begin: list[Message] = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        if isinstance(self.toolbox, BlockingTools):
            return self.toolbox.run_async(partial(self._run_episode, begin))
        return self._run_episode(begin)

    def cancel(self) -> None:
        """End the running episode, if any, with `finish="cancelled"`. Call it from the episode's event loop."""
        if self._scope is not None:
            self._scope.cancel()

    async def _run_episode(self, begin: Sequence[Message]) -> Episode:
        if self._scope is not None:
            raise RuntimeError("this AgentLoop already runs an episode; make one loop for each")
        schemas = self._tools.schemas
        history = History(begin, schemas)
        end = _End("cancelled", ErrorCause.CANCELLED)
        try:
            with anyio.CancelScope() as self._scope:
                with anyio.move_on_after(self._deadline_s) as within, episode_deadline(within):
                    end = await self._run_session(history, schemas)
                if within.cancelled_caught:
                    end = _End("deadline", ErrorCause.BUDGET)
        finally:
            self._scope = None
        return history.episode(end.finish, end.cause, self._sampling)

    async def _run_session(self, history: History, schemas: Sequence[Mapping[str, Any]]) -> _End:
        # Interfaces of models do not accept the key `runs_on` of host tools.
        tools = [{name: tool[name] for name in tool if name != "runs_on"} for tool in schemas]
        if self._summarise is not None:
            self._summary = self._summarise.begin(partial(self._ask_apart, history))
        try:
            session = open_session(self.model, tools)
        except Exception as error:  # noqa: BLE001 - whatever a model raises ends its episode only
            return _end_with_error(history, error)
        try:
            return await self._run_turns(session, history)
        finally:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await _close_session(session)

    async def _run_turns(self, session: ModelSession, history: History) -> _End:
        while history.turns < self.max_turns:
            if self._out_of_budget(history):
                return _OUT_OF_BUDGET
            completion = await self._complete(session, history, self._sampling)
            if isinstance(completion, _End):
                return completion
            history.add_completion(completion)
            failure = await self._tool_turns.run_turn(history) if completion.tool_calls else None
            failure = failure or await self._notify_turn(history, completion)
            if failure is not None:
                return _End("infra", failure)
            notices = history.notices_for(completion)
            if not completion.tool_calls and (not notices or completion.finish_reason != "stop"):
                return _end_with_answer(completion)
            if notices:
                history.add_notices(notices)
            if history.refused:
                break
        if self._final_answer:
            await self._ask_for_closing_answer(session, history)
        return _End("max_turns", ErrorCause.BUDGET)

    async def _complete(
        self, session: ModelSession, history: History, sampling: Mapping[str, Any]
    ) -> Completion | _End:
        started = anyio.current_time()
        try:
            return validate_completion(await session.complete(await self._select_messages(history), **sampling))
        except Exception as error:  # noqa: BLE001 - whatever a model raises ends its episode only
            return _end_with_error(history, error)
        finally:
            history.model_seconds += anyio.current_time() - started

    async def _select_messages(self, history: History) -> Sequence[Message]:
        """Return the messages that the model sees."""
        selection: Sequence[Message] | None
        if self._summary is not None:
            selection = await self._summary.select(history.messages)
        else:
            selection = await call_hook("context", self._context, history.messages, kind=Sequence)
        if selection is None or selection == history.messages:
            return history.messages
        history.compacted = True
        self._tools.forget_reads()
        return selection

    async def _ask_apart(self, history: History, messages: Sequence[Message]) -> Completion:
        """Request a completion without tools that is no part of the conversation, and count its usage."""
        session = open_session(self.model, [])
        try:
            completion = validate_completion(await session.complete(messages, **self._sampling))
        finally:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await _close_session(session)
        history.add_usage(completion)
        return completion

    async def _notify_turn(self, history: History, completion: Completion) -> ErrorCause | None:
        try:
            await call_hook("on_turn", self._hooks.on_turn, history.turn(completion), kind=object)
        except HookError as error:
            return history.add_failure(error)
        return None

    async def _ask_for_closing_answer(self, session: ModelSession, history: History) -> None:
        """Prompt the model for its closing answer. The episode ends as `max_turns` whether or not the answer comes."""
        history.add_notices([FINAL_ANSWER_NOTICE])
        completion = await self._complete(session, history, {**self._sampling, "tool_choice": "none"})
        if isinstance(completion, _End):
            return
        if completion.tool_calls:
            history.add_usage(completion)
            history.add_error("model", ModelError("the closing answer called tools and was dropped"))
        else:
            history.add_closing(completion)

    def _out_of_budget(self, history: History) -> bool:
        usage = history.usage
        spent = (
            (usage.prompt_tokens + usage.completion_tokens, self._max_tokens_total),
            (usage.cost, self._max_cost),
            (history.tool_seconds, self._max_tool_seconds),
        )
        return any(bound is not None and used >= bound for used, bound in spent)


async def _close_session(session: ModelSession) -> None:
    try:
        await session.aclose()
    except Exception:  # the episode has ended, so this is only logged
        logger.exception("the session of a model could not be closed")


def _end_with_answer(completion: Completion) -> _End:
    """Return the end of an episode whose last completion calls no tool."""
    if completion.finish_reason == "content_filter":
        return _End("content_filter", ErrorCause.PROVIDER)
    if completion.finish_reason == "length":
        return _End("max_tokens", ErrorCause.BUDGET)
    # A model that began in another role did write something, although nothing of it is kept.
    has_text = bool((completion.content or "").strip()) or completion.cut_at_invention
    return _End("answered" if has_text else "empty", ErrorCause.POLICY)


def _end_with_error(history: History, error: Exception) -> _End:
    """Record the error of a completion, and return the end of the episode."""
    if isinstance(error, HookError):
        return _End("infra", history.add_failure(error))
    if not isinstance(error, ModelError):
        history.add_bug("model", error)
        return _End("model_error", ErrorCause.INFRA)
    history.add_error("model", error)
    if isinstance(error, ContextExceeded):
        return _End("context", error.cause)
    return _End("content_filter" if isinstance(error, ContentFiltered) else "model_error", error.cause)


def _check_parts(model: object, tools: object) -> None:
    if not isinstance(model, (Model, SessionModel)):
        raise ConfigError(f"model must have a method 'complete' (or 'session'), and {type(model).__name__} has neither")
    missing = [name for name in _TOOLBOX_METHODS if not callable(getattr(tools, name, None))]
    if missing:
        raise ConfigError(f"toolbox must have a method {missing[0]!r}, and {type(tools).__name__} has none")


def _check_least(least: int, **bounds: object) -> None:
    for name, bound in bounds.items():
        if bound is not None and not (isinstance(bound, (int, float)) and least <= bound < math.inf):
            raise ConfigError(f"{name} is {least} or more, not {bound!r}")


def _check_above_zero(**bounds: object) -> None:
    for name, bound in bounds.items():
        if bound is not None and not (isinstance(bound, (int, float)) and 0 < bound < math.inf):
            raise ConfigError(f"{name} is above 0, not {bound!r}")
