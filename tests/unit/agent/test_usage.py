"""The usage of completions, in the spellings of many servers, and of each completion of an episode."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hermes_agent import AgentLoop, Completion, CompletionUsage, ScriptedModel, TokenUsage
from hermes_agent.models.chat_usage import read_usage
from tests.unit.agent.toolboxes import FunctionTools, ask, echo

pytestmark = pytest.mark.anyio

SPELLINGS: dict[str, tuple[dict[str, Any], TokenUsage]] = {
    "OpenAI": (
        {
            "prompt_tokens": 19,
            "completion_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 6, "accepted_prediction_tokens": 0},
        },
        TokenUsage(19, 10, 1, 0, 6, 8),
    ),
    "OpenRouter": (
        {
            "prompt_tokens": 194,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens": 2,
            "completion_tokens_details": {"reasoning_tokens": 0},
            "cost": 0.95,
            "is_byok": False,
            "cost_details": {"upstream_inference_cost": 0.95},
        },
        TokenUsage(194, 2, 1, 0.95, 0, 4),
    ),
    "OpenRouter, own key": (
        {"cost": 0.05, "is_byok": True, "cost_details": {"upstream_inference_cost": 1}},
        TokenUsage(0, 0, 1, 1.05),
    ),
    "SGLang": (
        {"prompt_tokens": 3, "completion_tokens": 9, "prompt_tokens_details": None, "reasoning_tokens": 7},
        TokenUsage(3, 9, 1, 0, 7),
    ),
    "DeepSeek": (
        {
            "prompt_tokens": 9,
            "completion_tokens": 4,
            "prompt_cache_hit_tokens": 6,
            "prompt_cache_miss_tokens": 3,
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
        TokenUsage(9, 4, 1, 0, 2, 6),
    ),
    "Moonshot": ({"prompt_tokens": 9, "completion_tokens": 4, "cached_tokens": 5}, TokenUsage(9, 4, 1, 0, 0, 5)),
    "Anthropic": (
        {"input_tokens": 3, "output_tokens": 4, "cache_read_input_tokens": 50, "cache_creation_input_tokens": 7},
        TokenUsage(60, 4, 1, 0, 0, 50),
    ),
    "Anthropic by proxy": (
        {"prompt_tokens": 60, "completion_tokens": 4, "cache_read_input_tokens": 50, "cache_creation_input_tokens": 7},
        TokenUsage(60, 4, 1, 0, 0, 50),
    ),
    "Perplexity": (
        {"prompt_tokens": 3, "completion_tokens": 4, "cost": {"input_tokens_cost": 0.1, "total_cost": 0.5}},
        TokenUsage(3, 4, 1, 0.5),
    ),
    "xAI": (
        {"prompt_tokens": 3, "completion_tokens": 4, "cost_in_usd_ticks": 318319000},
        TokenUsage(3, 4, 1, 0.0318319),
    ),
    "nonsense": (
        {
            "prompt_tokens": "7",
            "completion_tokens": -2,
            "cost": [],
            "prompt_tokens_details": {"cached_tokens": math.inf},
            "completion_tokens_details": 5,
            "input_tokens": math.nan,
        },
        TokenUsage(requests=1),
    ),
}


@pytest.mark.parametrize(("usage", "expected"), SPELLINGS.values(), ids=SPELLINGS)
def test_usage_is_read_in_the_spelling_of_each_server(usage: dict[str, Any], expected: TokenUsage) -> None:
    assert read_usage(usage) == expected


async def test_episode_has_the_usage_of_each_completion() -> None:
    first, last = TokenUsage(10, 5, 1, 0.25, 3, 2), TokenUsage(20, 2, 1, 0.5, 1, 15)
    steps = [Completion("", ask(1).tool_calls, usage=first), Completion("do", finish_reason="length", usage=last)]
    loop = AgentLoop(ScriptedModel(steps), FunctionTools(echo), max_tokens=9, sampling={"seed": 4, "stop": None})
    episode = await loop.run("go")
    assert episode.completions == (CompletionUsage(first, "stop"), CompletionUsage(last, "length"))
    assert episode.usage == TokenUsage(30, 7, 2, 0.75, 4, 17)
    assert episode.sampling == {"temperature": 1.0, "max_tokens": 9, "seed": 4}


@pytest.mark.parametrize("closing", [Completion("bye", usage=TokenUsage(7, 1, 1)), ask(2)])
async def test_closing_answer_is_among_the_completions(closing: Completion) -> None:
    loop = AgentLoop(ScriptedModel([ask(1), closing]), FunctionTools(echo), max_turns=1, final_answer=True)
    episode = await loop.run("go")
    assert [each.usage for each in episode.completions] == [ask(1).usage, closing.usage]
    assert episode.usage == ask(1).usage + closing.usage


@pytest.mark.parametrize("field", ["reasoning_tokens", "cached_tokens"])
async def test_usage_that_is_no_number_ends_the_episode(field: str) -> None:
    usage = TokenUsage(1, 2, **{field: math.nan})  # type: ignore[arg-type]
    episode = await AgentLoop(ScriptedModel([Completion("a", usage=usage)]), FunctionTools(echo)).run("go")
    assert (episode.finish, episode.completions) == ("model_error", ())
