"""The options of a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_agent.models.base import Model, SessionModel
from hermes_exec.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """The options of a gateway. The budgets count one gateway, which is one rollout.

    The harness that asks is as untrusted as the model: it can send any request at any rate. Keep the budgets finite.

    Args:
        max_requests: The most answers that are sampled. A retry that gets an answer again uses no budget.
        max_tokens: The most ids that are sampled, over all answers. An answer is cut at the end of the budget.
        max_cost: The most that the answers may cost, in the currency of `TokenUsage.cost`. Requests are refused once it
            is reached. None: no limit.
        max_roots: The most conversations that begin anew (`Captured.roots`).
        sampling: Parameters of every answer of the policy, such as `temperature`. They win over the request's. Of two
            `max_tokens` the smaller one counts.
        models: The models by the name that a request asks for; `"*"` is any other name. The policy is the model that
            the gateway was made with, the others are helpers, whose answers are never trained. None: every name is the
            policy.

    Raises:
        ConfigError: If a budget is below 1 (`max_cost`: not above 0), or `models` is empty.
    """

    max_requests: int = 1_000
    max_tokens: int = 1_000_000
    max_cost: float | None = None
    max_roots: int = 100
    sampling: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Model | SessionModel] | None = None

    def __post_init__(self) -> None:
        for name in ("max_requests", "max_tokens", "max_roots"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} of a gateway is at least 1, not {value}")
        if self.max_cost is not None and not self.max_cost > 0:
            raise ConfigError(f"max_cost of a gateway is above 0, not {self.max_cost}")
        if self.models is not None and not self.models:
            raise ConfigError('models of a gateway is empty: name a model, or "*" for any name')
