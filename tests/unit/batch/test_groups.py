"""Estimates over the samples of prompts: pass@k is unbiased, also for prompts that were stopped."""

from __future__ import annotations

import random
import statistics
from itertools import combinations

import pytest

from hermes_batch.groups import Groups


def groups(*verdicts: str) -> Groups:
    """Return the groups of prompts: `1` solved, `0` unsolved, `-` unscored."""
    words = {"1": "solved", "0": "unsolved", "-": "unscored"}
    made = Groups()
    for group, samples in enumerate(verdicts):
        for verdict in samples:
            reward = "null" if verdict == "-" else f"{verdict}.0"
            made.add({"group": str(group), "solved": words[verdict], "reward": reward})
    return made


@pytest.mark.parametrize("verdicts", ["10010", "11111", "00000", "10000"])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_is_the_share_of_subsets_with_a_solved_sample(verdicts: str, k: int) -> None:
    subsets = [*combinations(verdicts, k)]
    estimate = groups(verdicts).estimate_pass(k)
    assert estimate is not None
    assert estimate.mean == pytest.approx(sum("1" in subset for subset in subsets) / len(subsets))
    assert (estimate.error, estimate.prompts) == (None, 1)


def test_mean_and_error_are_over_prompts() -> None:
    made = groups("1100", "1111", "0000", "1---")
    one, four = made.estimate_pass(1), made.estimate_pass(4)
    assert one is not None
    assert four is not None
    assert one.mean == pytest.approx(0.625)
    assert one.error == pytest.approx(statistics.stdev([0.5, 1, 0, 1]) / 2)
    assert (one.prompts, four.prompts, made.most_samples) == (4, 3, 4)
    assert four.mean == pytest.approx(2 / 3)
    assert str(one) == "0.625 ± 0.239"
    assert made.estimate_pass(5) is None
    assert [*made.summarize()] == ["pass@1", "pass@2", "pass@4", "reward"]
    reward = made.estimate_reward()
    assert reward is not None
    assert reward.mean == pytest.approx(0.625)
    assert reward.prompts == 4


def test_nothing_is_estimated_from_nothing() -> None:
    assert Groups().summarize() == {}
    assert groups("--").summarize() == {}


@pytest.mark.parametrize(("until_solved", "chance"), [(1, 0.3), (2, 0.3), (2, 0.8), (3, 0.5)])
def test_estimate_of_stopped_prompts_is_unbiased(until_solved: int, chance: float) -> None:
    generator = random.Random(1)
    prompts = []
    for _ in range(20_000):
        verdicts = ""
        while len(verdicts) < 8 and verdicts.count("1") < until_solved:
            verdicts += str(int(generator.random() < chance))
        prompts.append(verdicts)
    made = groups(*prompts)
    estimate = made.estimate_pass(1, until_solved)
    naive = made.estimate_pass(1)
    assert estimate is not None
    assert naive is not None
    assert estimate.error is not None
    assert abs(estimate.mean - chance) < 4 * estimate.error
    assert abs(naive.mean - chance) > 4 * estimate.error
    assert [*made.summarize(until_solved)] == ["pass@1"]


def test_samples_after_the_last_solved_one_needed_do_not_count() -> None:
    estimate = groups("0101").estimate_pass(1, 1)
    assert estimate is not None
    assert estimate.mean == 0
    estimate = groups("0110").estimate_pass(1, 2)
    assert estimate is not None
    assert estimate.mean == 0.5
