"""Estimates over groups: the samples of each prompt, pass@k, and mean rewards."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple


class Estimate(NamedTuple):
    """The mean over prompts of an unbiased estimate, and the standard error of the mean over their choice.

    `error` is None for a single prompt.
    """

    mean: float
    error: float | None
    prompts: int

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.error is None else f" ± {self.error:.3f}")


@dataclass
class Groups:
    """The verdicts and rewards of the samples of each prompt. Samples that were not scored do not count."""

    verdicts: dict[str, bytearray] = field(default_factory=dict)
    """For each group, 1 for each solved and 0 for each unsolved sample, in the order of the records."""
    rewards: dict[str, list[float]] = field(default_factory=dict)
    """For each group, the sum and the number of its rewards."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a record. One of another program that has no group does not count."""
        group, solved = str(record.get("group", "")), record.get("solved")
        if not group:
            return
        if solved in ("solved", "unsolved"):
            self.verdicts.setdefault(group, bytearray()).append(solved == "solved")
        reward = _parse_reward(str(record.get("reward", "null")))
        if reward is not None:
            sums = self.rewards.setdefault(group, [0.0, 0.0])
            sums[0] += reward
            sums[1] += 1

    @property
    def most_samples(self) -> int:
        """The largest number of scored samples of a prompt."""
        return max(map(len, self.verdicts.values()), default=0)

    def estimate_pass(self, k: int, until_solved: int | None = None) -> Estimate | None:
        """Return an estimate of pass@k, the chance that at least one of k samples of a prompt is solved.

        Prompts with fewer than k scored samples are left out. None: no prompt has enough.

        Args:
            k: The number of samples.
            until_solved: The number of solved samples after which the run stopped a prompt. Such a prompt has an
                estimate for one sample only: (until_solved - 1) / (n - 1) if its n-th sample was the last one needed.
        """
        if until_solved is not None and k > 1:
            return None
        values = [
            _estimate_stopped(verdicts, until_solved) if until_solved else _estimate(len(verdicts), sum(verdicts), k)
            for verdicts in self.verdicts.values()
            if len(verdicts) >= k
        ]
        return _make_estimate(values)

    def estimate_reward(self) -> Estimate | None:
        """Return the mean over prompts of the mean reward of their samples. None: nothing was scored."""
        return _make_estimate([total / count for total, count in self.rewards.values()])

    def summarize(self, until_solved: int | None = None) -> dict[str, Estimate]:
        """Return the estimates of a run by their names: `pass@1`, `pass@k` for the powers of two and the largest number
        of samples, and `reward`.

        With `until_solved` there is no `reward`: a prompt stops when it did well, so that the mean is too high.
        """
        most = self.most_samples
        numbers = [1 << power for power in range(most.bit_length()) if 1 << power < most]
        estimates: dict[str, Estimate | None] = {
            f"pass@{k}": self.estimate_pass(k, until_solved) for k in (*numbers, most) if k
        }
        estimates["reward"] = self.estimate_reward() if until_solved is None else None
        return {name: estimate for name, estimate in estimates.items() if estimate is not None}


@lru_cache(maxsize=1024)
def _parse_reward(text: str) -> float | None:
    try:
        reward = json.loads(text)
    except ValueError:
        return None
    return float(reward) if isinstance(reward, int | float) and not isinstance(reward, bool) else None


def _estimate(samples: int, solved: int, k: int) -> float:
    """Return the unbiased estimate of pass@k for `solved` of `samples` samples."""
    return 1 - math.comb(samples - solved, k) / math.comb(samples, k)


def _estimate_stopped(verdicts: Sequence[int], until_solved: int) -> float:
    """Return the unbiased estimate of the chance of one sample, for samples that stop at the last solved one needed."""
    solved = 0
    for number, verdict in enumerate(verdicts, 1):
        solved += verdict
        if solved == until_solved:
            return (until_solved - 1) / (number - 1) if number > 1 else 1.0
    return solved / len(verdicts)


def _make_estimate(values: Sequence[float]) -> Estimate | None:
    if not values:
        return None
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Estimate(statistics.fmean(values), error, len(values))
