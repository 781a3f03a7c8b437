"""Batch runs under disasters lose no sample and reward no outage."""

from __future__ import annotations

import os

import pytest

from tests.chaos.batch import COMMAND, TURNS, Plan, find_faults, survive
from tests.conftest import require_engine
from tests.e2e.agent.flaky_endpoint import Faults


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(Plan(prompts=10, samples=2, workers=8, kills=2, pause_s=1.0, most_sandboxes=4), id="small"),
        pytest.param(
            Plan(
                prompts=300,
                samples=1,
                workers=32,
                kills=2,
                faults=Faults(
                    per_s=40, faults=0.05, away_after=450, away_s=4, away_as="503", turns=TURNS, command=COMMAND
                ),
                options=(
                    *("--price", "prompt=1,completion=2", "--budget-cost", "10", "--budget-time", "3600"),
                    *("--context", "summarise", "--context-tokens", "1000", "--ephemeral-system-prompt", "be brief"),
                ),
            ),
            id="unkind",
            marks=pytest.mark.whole,
        ),
        pytest.param(Plan(), id="large", marks=pytest.mark.whole),
    ],
)
def test_batch_survives_disasters(plan: Plan) -> None:
    require_engine("docker")
    if os.geteuid():
        pytest.skip("a small disk needs root")
    evidence = survive(plan)
    assert not find_faults(plan, evidence)
    assert evidence.sandboxes_killed
