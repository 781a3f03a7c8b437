"""The whole loop learns, and only from what its tool calls wrote: `make test-rl` (needs torch)."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-rl` does that")
train = pytest.importorskip("examples.tiny_rl.train")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("harness", "count"), [(False, 40), (True, 20)], ids=["loop", "harness"])
def test_the_policy_learns_what_is_rewarded(harness: bool, count: int) -> None:
    steps = train.run(steps=count, harness=harness)
    assert steps[0].reward <= 0.15
    assert steps[-1].reward >= 0.85
    assert max(step.difference for step in steps) <= 1e-4
    assert steps[0].shifted > 0.3


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("control", [{"learning_rate": 0.0}, {"writes": False}], ids=["no learning", "no writes"])
@pytest.mark.parametrize("harness", [False, True], ids=["loop", "harness"])
def test_without_learning_or_writing_nothing_is_gained(control: dict[str, float], harness: bool) -> None:
    steps = train.run(steps=10, harness=harness, **control)
    assert max(step.reward for step in steps) <= 0.15
    assert max(step.difference for step in steps) <= 1e-4
