"""Budgets of runs, and the words for several endpoints."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hermes_batch.budget import NO_BUDGET, RunBudget, read_unrecorded
from hermes_batch.result import BatchResult, Spending
from hermes_batch.status import EndpointFacts
from hermes_batch.status_words import describe_endpoint
from hermes_exec.errors import ConfigError


def result(cost: float = 0.0, tokens: int = 0, seconds: float = 0.0) -> BatchResult:
    return BatchResult(Path("out"), 10, seconds=seconds, spending=Spending(cost, tokens))


def test_a_budget_ends_when_it_is_reached() -> None:
    budget = RunBudget(cost=5, tokens=100, seconds=60)
    assert budget.explain_end(result(4.99, 99, 59.9)) is None
    assert budget.explain_end(result(5, 0, 0)) == "the budget is used up: cost 5 of 5"
    assert budget.explain_end(result(0, 101, 0)) == "the budget is used up: tokens 101 of 100"
    assert budget.explain_end(result(0, 0, 60.5)) == "the budget is used up: time 60.5 of 60 s"
    assert NO_BUDGET.explain_end(result(math.inf, 1 << 60, math.inf)) is None


def test_nothing_continues_without_a_rest() -> None:
    RunBudget(cost=5).check_rest(result(4))
    with pytest.raises(ConfigError, match=r"cost 5 of 5.*nothing was started"):
        RunBudget(cost=5).check_rest(result(5))


@pytest.mark.parametrize("settings", [{}, {"unrecorded": None}, {"unrecorded": {}}])
def test_runs_of_earlier_versions_have_spent_nothing_else(settings: dict[str, object]) -> None:
    assert read_unrecorded(settings) == (0.0, 0)


def test_status_names_the_endpoints_that_are_away() -> None:
    parts = {"http://a/v1": EndpointFacts(away_s=12.0, reason="HTTP 503: down"), "http://b/v1": EndpointFacts()}
    text = describe_endpoint(EndpointFacts(parts=parts))
    assert text == "1 of 2 endpoints away: http://a/v1: HTTP 503: down (for 12 s)"
    assert describe_endpoint(EndpointFacts(parts={"http://b/v1": EndpointFacts()})) == ""
