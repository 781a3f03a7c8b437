"""Prices of tokens: their text, and the cost of completions."""

from __future__ import annotations

import pytest

from hermes_agent import OpenAIModel, Prices, TokenUsage
from hermes_exec.errors import ConfigError
from tests.unit.agent.endpoint import endpoint, ok

ASK = [{"role": "user", "content": "hi"}]


def test_cost_counts_cached_and_reasoning_tokens_at_their_prices() -> None:
    usage = TokenUsage(1_000_000, 500_000, 1, 0.0, 200_000, 400_000)
    assert Prices(prompt=2, completion=10).cost(usage) == pytest.approx(2 + 5)
    prices = Prices(prompt=2, completion=10, cached=0.5, reasoning=20)
    assert prices.cost(usage) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.3 * 10 + 0.2 * 20)


def test_cost_of_a_usage_with_impossible_parts_is_not_negative() -> None:
    usage = TokenUsage(10, 10, 1, 0.0, 50, 50)
    assert Prices(prompt=1, completion=1, cached=1, reasoning=1).cost(usage) == pytest.approx(20 / 1e6)


def test_parse_reads_all_prices() -> None:
    assert Prices.parse("prompt=0.5, completion=1.5") == Prices(prompt=0.5, completion=1.5)
    text = "completion=1.5,prompt=0.5,cached=0,reasoning=2"
    assert Prices.parse(text) == Prices(prompt=0.5, completion=1.5, cached=0, reasoning=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a price is NAME=NUMBER"),
        ("prompt=1", "the price of completion tokens is missing"),
        ("prompt=1,completions=2", "a price is for"),
        ("prompt=1,completion=x", "a number of at least 0, not 'x'"),
        ("prompt=-1,completion=1", "a number of at least 0, not -1"),
        ("prompt=nan,completion=1", "a number of at least 0, not nan"),
        ("prompt=1,prompt=2,completion=1", "given twice"),
    ],
)
def test_parse_refuses_other_texts(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Prices.parse(text)


@pytest.mark.anyio
async def test_model_adds_a_cost_only_if_the_endpoint_reports_none() -> None:
    reported = {"prompt_tokens": 10, "completion_tokens": 5, "cost": 0.25}
    with endpoint(ok({"content": "x"}), ok({"content": "x"}, usage=reported)) as server:
        model = OpenAIModel("m", base_url=server.base_url, prices=Prices(prompt=1, completion=2))
        costs = [(await model.complete(ASK, [])).usage.cost for _ in range(2)]
        await model.aclose()
    assert costs == [pytest.approx((11 * 1 + 3 * 2) / 1e6), 0.25]
