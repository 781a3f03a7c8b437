"""Reads the usage of a chat completion, in the spellings of many servers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hermes_agent.messages import TokenUsage

_LARGEST_USAGE = 1 << 53
"""The largest number that is accepted as a usage."""
_TICKS = 1e10
"""xAI's ticks in a dollar."""
_Path = tuple[str, ...]
_PROMPT: tuple[_Path, ...] = (("prompt_tokens",),)
_COMPLETION: tuple[_Path, ...] = (("completion_tokens",), ("output_tokens",))
_REASONING: tuple[_Path, ...] = (
    ("completion_tokens_details", "reasoning_tokens"),  # OpenAI, OpenRouter, DeepSeek, vLLM, xAI, Groq
    ("output_tokens_details", "reasoning_tokens"),
    ("reasoning_tokens",),  # SGLang, Perplexity
)
_CACHED: tuple[_Path, ...] = (
    ("prompt_tokens_details", "cached_tokens"),  # OpenAI, OpenRouter, vLLM, SGLang, Z.ai, xAI
    ("input_tokens_details", "cached_tokens"),
    ("prompt_cache_hit_tokens",),  # DeepSeek
    ("cached_tokens",),  # Moonshot, Together
    ("cache_read_input_tokens",),  # Anthropic, and proxies to it
)
_COST: tuple[_Path, ...] = (("cost",), ("cost", "total_cost"))  # OpenRouter and LiteLLM, Perplexity


def read_usage(usage: Mapping[str, Any]) -> TokenUsage:
    """Return the usage of one completion. A number that is missing or makes no sense is 0."""
    return TokenUsage(
        int(_first(usage, _PROMPT) or _input_tokens(usage)),
        int(_first(usage, _COMPLETION)),
        1,
        _cost(usage),
        int(_first(usage, _REASONING)),
        int(_first(usage, _CACHED)),
    )


def _input_tokens(usage: Mapping[str, Any]) -> float:
    """Return the prompt's tokens in the words of Anthropic, whose `input_tokens` leave out what the cache has."""
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return min(sum(_number(usage.get(name)) for name in parts), _LARGEST_USAGE)


def _cost(usage: Mapping[str, Any]) -> float:
    cost = _first(usage, _COST)
    if usage.get("is_byok") is True:
        # With the user's own key, OpenRouter's `cost` is only its fee.
        cost += _first(usage, (("cost_details", "upstream_inference_cost"),))
    return cost or _number(usage.get("cost_in_usd_ticks")) / _TICKS


def _first(usage: Mapping[str, Any], paths: tuple[_Path, ...]) -> float:
    """Return the number at the first of these paths that has one above 0."""
    for path in paths:
        value: object = usage
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if number := _number(value):
            return number
    return 0


def _number(value: object) -> float:
    """Return a number of at least 0; anything else is 0."""
    return min(value, _LARGEST_USAGE) if isinstance(value, int | float) and 0 < value < math.inf else 0
