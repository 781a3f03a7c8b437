"""Metrics of rollouts, groups and slots for wandb."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, quantiles
from typing import Any

from hermes_agent import Message, RolloutResult
from hermes_agent.messages import message_text
from hermes_exec import ErrorCause
from hermes_exec.results import PoolStats

_INFRA = (ErrorCause.INFRA, ErrorCause.PROVIDER)
_MAX_ERRORS = 20
_MAX_CHARS = 4000


class RolloutTally:
    """Counts rollouts and groups since the last `read`."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._rewards: list[float] = []
        self._solved: list[bool] = []
        self._turns: list[int] = []
        self._call_seconds: list[float] = []
        self._finishes: Counter[str] = Counter()
        self._causes: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._rerolls: Counter[str] = Counter()
        self._errors: list[str] = []
        self._shares: list[float] = []
        self._calls = self._tool_errors = self._rerolled = 0

    def add(self, result: RolloutResult) -> None:
        """Count a rollout, whether or not it can be trained on."""
        self._finishes[result.finish] += 1
        self._causes[str(result.cause)] += 1
        self._rerolled += result.reward is None
        if result.reward is not None:
            self._rewards.append(result.reward)
            self._solved.append(bool(result.solved))
        if result.episode is not None:
            self._turns.append(result.episode.turns)
            calls = result.episode.tool_calls
            failed = [call for call in calls if not call.ok]
            self._calls += result.episode.call_count
            self._tool_errors += len(failed)
            self._call_seconds += [call.duration_s for call in calls if call.state != "not_begun"]
            self._errors += [f"{call.name}: {call.error_kind}: {call.content[:200]}" for call in failed]

    def add_share(self, share: float) -> None:
        """Count the share of a rollout's sampled ids that is trained."""
        self._shares.append(share)

    def reroll(self, cause: str) -> None:
        """Count a rollout that runs again."""
        self._rerolls[cause] += 1

    def drop(self, why: str) -> None:
        """Count a group that is not sent."""
        self._dropped[why] += 1

    def read(self, pool: PoolStats, lateness: Sequence[float]) -> dict[str, Any]:
        """Return the metrics by their wandb names, and reset the counts. `lateness` are samples of how late the event
        loop was.
        """
        total = sum(self._finishes.values())
        metrics: dict[str, Any] = {
            **{f"train/finish_{name}": count / total for name, count in self._finishes.items()},
            **{f"train/cause_{name}": count / total for name, count in self._causes.items()},
            **{f"train/groups_dropped_{name}": count for name, count in self._dropped.items()},
            **{f"train/rerolls_{name}": count for name, count in self._rerolls.items()},
            **_spread("train/tool_call_s", self._call_seconds),
            **_spread("loop/late_s", lateness),
            "loop/late_s_max": max(lateness, default=0.0),
            "train/rollouts": total,
            "train/rollouts_unusable": self._rerolled,
            "train/tool_calls": self._calls,
            "train/tool_errors_count": self._tool_errors,
            "pool/slots_in_use": pool.slots_in_use,
            "pool/slots_total": pool.slots_total,
            "pool/slots_quarantined": pool.slots_quarantined,
            "pool/waiting": pool.waiting,
            "pool/launches": pool.launches,
            "pool/failures": pool.failures,
            "pool/acquired": pool.acquired,
            "pool/released": pool.released,
            "pool/acquire_p50_s": pool.acquire_p50_s,
            "pool/acquire_p95_s": pool.acquire_p95_s,
        }
        if total:
            metrics["train/infra_rate"] = sum(self._causes[str(cause)] for cause in _INFRA) / total
        if self._rewards:
            metrics["train/reward_mean"] = fmean(self._rewards)
            metrics["train/pass_rate"] = fmean(self._solved)
        if self._shares:
            metrics["train/trained_share"] = fmean(self._shares)
        if self._turns:
            metrics["train/turns_mean"] = fmean(self._turns)
        if self._errors:
            metrics["train/tool_error_details"] = "\n".join(self._errors[:_MAX_ERRORS])
        self._clear()
        return metrics


def _spread(name: str, seconds: Sequence[float]) -> dict[str, float]:
    if len(seconds) < 2:
        return {}
    cuts = quantiles(seconds, n=20)
    return {f"{name}_p50": cuts[9], f"{name}_p95": cuts[18]}


def format_conversation(messages: Sequence[Message]) -> str:
    """Return a conversation as readable text, with each message under its role. The middle of long texts is cut."""
    parts = []
    for message in messages:
        calls = [f"→ {_format_call(call)}" for call in message.get("tool_calls") or ()]
        text = "\n".join(filter(None, (message.get("reasoning_content"), message_text(message), *calls)))
        parts.append(f"[{message.get('role')}]\n{_shorten(text)}")
    return "\n\n".join(parts)


def _format_call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    return f"{function['name']}({function['arguments']})"


def _shorten(text: str) -> str:
    if len(text) <= _MAX_CHARS:
        return text
    half = _MAX_CHARS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters …\n{text[-half:]}"
