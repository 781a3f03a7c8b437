"""The columns of a record that say what its rollout used: tokens, cost, seconds and sampling parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib.metadata import version
from typing import Any, TypedDict

from hermes_agent import CompletionUsage, RolloutResult, TokenUsage
from hermes_agent.messages import TurnTokens


class UsageFacts(TypedDict):
    """The usage of one completion."""

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cached_tokens: int
    cost: float
    finish_reason: str


class TokenFacts(TypedDict):
    """The token ids of one turn (`hermes_agent.TurnTokens`)."""

    added: Sequence[int]
    ids: Sequence[int]
    logprobs: Sequence[float] | None
    restarts: bool


class TimingFacts(TypedDict):
    """The seconds of a rollout (`hermes_agent.Timings`)."""

    queue_s: float
    setup_s: float
    model_s: float
    tools_s: float
    check_s: float


def measure(result: RolloutResult) -> dict[str, Any]:
    """Return the columns of usage, seconds and sampling parameters of a rollout, before the conversion to JSON text."""
    episode, timings = result.episode, result.timings
    usage = TokenUsage() if episode is None else episode.usage
    return {
        "usage": [] if episode is None else [_usage_facts(each) for each in episode.completions],
        "prompt_tokens": int(usage.prompt_tokens),
        "completion_tokens": int(usage.completion_tokens),
        "reasoning_tokens": int(usage.reasoning_tokens),
        "cached_tokens": int(usage.cached_tokens),
        "cost": float(usage.cost),
        "seconds": round(result.seconds, 3),
        "timings": TimingFacts(
            queue_s=round(timings.queue_s, 3),
            setup_s=round(timings.setup_s, 3),
            model_s=round(timings.model_s, 3),
            tools_s=round(timings.tools_s, 3),
            check_s=round(timings.check_s, 3),
        ),
        "started": _time(result.started),
        "ended": _time(result.ended),
        "sampling": {} if episode is None else plain_values(episode.sampling),
        "compacted": episode is not None and episode.compacted,
        "version": package_version(),
    }


def token_facts(tokens: Sequence[TurnTokens] | None) -> list[TokenFacts]:
    """Return the token ids of each turn. None: the model returned none."""
    return [
        TokenFacts(added=turn.added, ids=turn.ids, logprobs=turn.logprobs, restarts=turn.restarts)
        for turn in tokens or ()
    ]


@cache
def package_version() -> str:
    """Return the version of hermes-exec."""
    return version("hermes-exec")


def _usage_facts(completion: CompletionUsage) -> UsageFacts:
    usage = completion.usage
    return {
        "prompt_tokens": int(usage.prompt_tokens),
        "completion_tokens": int(usage.completion_tokens),
        "reasoning_tokens": int(usage.reasoning_tokens),
        "cached_tokens": int(usage.cached_tokens),
        "cost": float(usage.cost),
        "finish_reason": str(completion.finish_reason),
    }


def _time(time: datetime | None) -> str:
    return "" if time is None else time.isoformat(timespec="milliseconds")


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a mapping that JSON can hold. Other objects, which a model of Python may take, become text."""
    return {name: value if _is_plain(value) else repr(value) for name, value in values.items()}


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
