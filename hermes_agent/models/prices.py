"""Prices of a model, for endpoints that do not report what a completion cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from hermes_agent.messages import TokenUsage
from hermes_exec.config import nearest
from hermes_exec.errors import ConfigError

_MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Prices:
    """The prices of a million tokens, in any currency.

    Args:
        prompt: Tokens of prompts.
        completion: Tokens of completions.
        cached: Tokens of prompts that the endpoint had in its cache. None: the price of `prompt`.
        reasoning: Tokens of thinking, which are a part of completions. None: the price of `completion`.

    Raises:
        ConfigError: If a price is not a number of at least 0.
    """

    prompt: float
    completion: float
    cached: float | None = None
    reasoning: float | None = None

    def __post_init__(self) -> None:
        for name, price in vars(self).items():
            if price is None and name in {"cached", "reasoning"}:
                continue
            if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < math.inf:
                raise ConfigError(f"the price of {name} tokens is a number of at least 0, not {price!r}")

    @classmethod
    def of(cls, prices: Mapping[str, Any]) -> Prices:
        """Return the prices of a mapping with the names of the fields.

        Raises:
            ConfigError: If a name is unknown, or the price of prompts or completions is missing.
        """
        names = [field.name for field in fields(cls)]
        for name in prices:
            if name not in names:
                raise ConfigError(f"a price is for prompt, completion, cached or reasoning; {nearest(name, names)}")
        for name in ("prompt", "completion"):
            if name not in prices:
                raise ConfigError(f"the price of {name} tokens is missing, as in prompt=0.5,completion=1.5")
        return cls(**prices)

    @classmethod
    def parse(cls, text: str) -> Prices:
        """Return the prices of a text such as "prompt=0.5,completion=1.5,cached=0.05".

        Raises:
            ConfigError: If the text is in another form, or lacks the price of prompts or completions.
        """
        prices: dict[str, float] = {}
        for part in text.split(","):
            name, equals, number = (piece.strip() for piece in part.partition("="))
            if not equals:
                raise ConfigError(f"a price is NAME=NUMBER, such as prompt=0.5, not {part!r}")
            if name in prices:
                raise ConfigError(f"the price of {name} tokens is given twice in {text!r}")
            try:
                prices[name] = float(number)
            except ValueError:
                raise ConfigError(f"the price of {name} tokens is a number of at least 0, not {number!r}") from None
        return cls.of(prices)

    def cost(self, usage: TokenUsage) -> float:
        """Return the cost of these tokens."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        reasoning = min(usage.reasoning_tokens, usage.completion_tokens)
        parts = (
            (usage.prompt_tokens - cached, self.prompt),
            (cached, self.prompt if self.cached is None else self.cached),
            (usage.completion_tokens - reasoning, self.completion),
            (reasoning, self.completion if self.reasoning is None else self.reasoning),
        )
        return sum(tokens * price for tokens, price in parts) / _MILLION
