"""The budget of a run: its cost, tokens and time. When one is used up, the run ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import anyio

from hermes_agent import Hooks, Rollout, RolloutResult, TokenUsage, Turn
from hermes_agent.rollout_result import Stage
from hermes_batch.result import BatchResult
from hermes_exec.errors import ConfigError

_FIRST_ANSWERS = 8
"""The number of answers after which a budget that counts nothing ends the run."""


@dataclass(frozen=True)
class RunBudget:
    """The bounds of a run over all its invocations. None: no bound.

    Attributes:
        cost: The highest cost.
        tokens: The most tokens of prompts and completions.
        seconds: The longest time.
        may_be_free: Whether completions may have no cost, as with prices of 0.
    """

    cost: float | None = None
    tokens: int | None = None
    seconds: float | None = None
    may_be_free: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for a bound of 0 or less."""
        for name, bound in (("cost", self.cost), ("tokens", self.tokens), ("time_s", self.seconds)):
            if bound is not None and not bound > 0:
                raise ConfigError(f"budget_{name} must be more than 0, not {bound}")

    def explain_end(self, result: BatchResult) -> str | None:
        """Return which bound is used up, or None."""
        spent = (
            ("cost", result.spending.cost, self.cost),
            ("tokens", result.spending.tokens, self.tokens),
            ("time", result.seconds, self.seconds),
        )
        for name, used, bound in spent:
            if bound is not None and used >= bound:
                unit = " s" if name == "time" else ""
                amount = f"{used:.6g}" if isinstance(used, float) else str(used)
                return f"the budget is used up: {name} {amount} of {bound:g}{unit}"
        return None

    def check_rest(self, result: BatchResult) -> None:
        """Refuse to continue a run that has nothing left.

        Raises:
            ConfigError: If a bound is used up.
        """
        if (why := self.explain_end(result)) is not None:
            raise ConfigError(f"{why}; nothing was started: continue the run with a larger budget, or without one")


NO_BUDGET = RunBudget()


class BudgetGuard:
    """Counts what the episodes of a run spend, turn by turn, and ends them when the budget is used up.

    Episodes whose model has given its last answer, or that are being scored, are recorded. The others are cancelled,
    without a record.

    Args:
        budget: The bounds.
        result: The state of the run. Its `spending` is updated, and its `stopped` set at the end.
        on_end: Called when the budget is used up.
    """

    def __init__(self, budget: RunBudget, result: BatchResult, on_end: Callable[[], None]) -> None:
        self._budget, self._result, self._on_end = budget, result, on_end
        self._episodes: set[EpisodeSpending] = set()
        self._answers = 0
        self._counted = TokenUsage()
        self._error: ConfigError | None = None

    @contextmanager
    def episode(self) -> Iterator[EpisodeSpending]:
        """Count an episode within the block, which ends early when the budget is used up."""
        spending = EpisodeSpending(self._note)
        self._episodes.add(spending)
        try:
            with spending.scope:
                yield spending
        finally:
            self._episodes.discard(spending)

    async def watch_time(self) -> None:
        """End the run when its time is over."""
        if self._budget.seconds is not None:
            await anyio.sleep(self._budget.seconds - self._result.seconds)
            self._end(f"the budget is used up: time {self._budget.seconds:g} s")

    def check_at_end(self) -> None:
        """Raise the error that ended the run.

        Raises:
            ConfigError: If the endpoint does not count what the budget bounds.
        """
        if self._error is not None:
            raise self._error
        if self._result.complete:
            self._result.stopped = None

    def _note(self, usage: TokenUsage) -> None:
        self._result.spending.add_usage(usage)
        self._counted += usage
        self._answers += usage.requests
        uncounted = None
        if self._answers >= _FIRST_ANSWERS:
            uncounted = self._find_uncounted()
        if uncounted is not None:
            self._error = ConfigError(f"the run was stopped after {self._answers} answers: {uncounted}")
            self._end(uncounted)
        elif (why := self._budget.explain_end(self._result)) is not None:
            self._end(why)

    def _find_uncounted(self) -> str | None:
        tokens = self._counted.prompt_tokens + self._counted.completion_tokens
        if self._budget.cost is not None and not self._counted.cost and not self._budget.may_be_free:
            return "the endpoint reports no cost, so the budget of cost cannot hold; give its prices (--price)"
        if self._budget.tokens is not None and not tokens:
            return "the endpoint counts no tokens, so the budget of tokens cannot hold; try --no-stream"
        return None

    def _end(self, why: str) -> None:
        if self._result.stopped is None:
            self._result.stopped = why
        for episode in self._episodes:
            if not episode.is_over:
                episode.scope.cancel()
        self._on_end()


class EpisodeSpending:
    """An episode that is counted. Each of its attempts is."""

    def __init__(self, note: Callable[[TokenUsage], None]) -> None:
        self.scope = anyio.CancelScope()
        self.is_over = False
        """Whether the model's work is over: its last answer has no calls, or the episode is being scored."""
        self._note = note
        self._turns = TokenUsage()

    def count(self, rollout: Rollout, hooks: Hooks) -> Rollout:
        """Return the rollout of an attempt with these hooks, whose turns are counted.

        A program has no hooks: its completions are counted when it has ended.
        """
        self._turns, self.is_over = TokenUsage(), False

        def on_stage(stage: Stage) -> None:
            self.is_over = self.is_over or stage == "check"
            if rollout.on_stage is not None:
                rollout.on_stage(stage)

        def on_turn(turn: Turn) -> Awaitable[None] | None:
            self.is_over = not turn.completion.tool_calls
            self._turns += turn.completion.usage
            self._note(turn.completion.usage)
            return None if hooks.on_turn is None else hooks.on_turn(turn)

        if rollout.program is not None:
            return replace(rollout, on_stage=on_stage)
        counting = replace(hooks, on_turn=on_turn)
        return replace(rollout, on_stage=on_stage, loop={**rollout.loop, "hooks": counting})

    def settle(self, result: RolloutResult) -> None:
        """Count the completions of a finished attempt that were no turns, such as its closing answer."""
        if result.episode is None:
            return
        self.is_over = True
        usage, turns = result.episode.usage, self._turns
        self._note(
            TokenUsage(
                usage.prompt_tokens - turns.prompt_tokens,
                usage.completion_tokens - turns.completion_tokens,
                usage.requests - turns.requests,
                usage.cost - turns.cost,
            )
        )


def read_unrecorded(settings: Mapping[str, Any]) -> tuple[float, int]:
    """Return the cost and the tokens in `run.json` that no record has: of episodes that were cancelled or run again."""
    unrecorded = settings.get("unrecorded")
    values = unrecorded if isinstance(unrecorded, dict) else {}
    return float(values.get("cost") or 0.0), int(values.get("tokens") or 0)
