"""The budgets of a gateway: requests, sampled ids, cost and conversations."""

from __future__ import annotations

import anyio

from hermes_agent.gateway.options import Gateway
from hermes_agent.gateway.request import GatewayError
from hermes_agent.messages import TokenUsage

MAX_CHARACTERS = 256 << 20
"""The most characters of messages and tools that the requests of one gateway bring: the driver keeps them."""


class Budgets:
    """Counts what the answers of one gateway use.

    Attributes:
        usage: The tokens and the cost of all answers.
        roots: The number of conversations of the policy.
        exhausted: The name of the budget that refused a request first. Empty: none did.
    """

    def __init__(self, options: Gateway) -> None:
        self._options = options
        self._requests = self._characters = self._reserved = 0
        self.roots = 0
        self._freed = anyio.Event()
        self.usage = TokenUsage()
        self.exhausted = ""

    def begin(self, *, root: bool, characters: int) -> None:
        """Count a request. `root`: it begins a conversation of the policy. `characters` are those of its new messages
        and tools, which count for requests without an answer too.

        Raises:
            GatewayError: If a budget is used up.
        """
        options = self._options
        if self._requests >= options.max_requests:
            raise self._refusal("max_requests", options.max_requests)
        if root and self.roots >= options.max_roots:
            raise self._refusal("max_roots", options.max_roots)
        if options.max_cost is not None and self.usage.cost >= options.max_cost:
            raise self._refusal("max_cost", options.max_cost)
        if self.usage.completion_tokens >= options.max_tokens:
            raise self._refusal("max_tokens", options.max_tokens)
        if self._characters + characters > MAX_CHARACTERS:
            raise self._refusal("characters", MAX_CHARACTERS)
        self._characters += characters
        self._requests += 1
        self.roots += root

    def undo(self, *, root: bool) -> None:
        """Count a request as if it had not been: it got no answer."""
        self._requests -= 1
        self.roots -= root

    async def reserve(self, most: int | None) -> int | None:
        """Return how many ids an answer may have, and keep them reserved until `settle`.

        An answer gets fewer than `most` only at the end of the budget. Until the answers that are being sampled have
        used or left their part of it, it waits. None: the model has no limit, and nothing is reserved.

        Raises:
            GatewayError: If nothing is left.
        """
        while self.usage.completion_tokens < self._options.max_tokens:
            left = self._options.max_tokens - self.usage.completion_tokens - self._reserved
            if most is None:
                return None
            if left >= most or not self._reserved:
                granted = min(most, left)
                self._reserved += granted
                return granted
            await self._freed.wait()
        raise self._refusal("max_tokens", self._options.max_tokens)

    def settle(self, reserved: int | None, usage: TokenUsage | None) -> None:
        """End a reservation, with the usage of the answer if there is one."""
        self._reserved -= reserved or 0
        self.usage += usage or TokenUsage()
        self._freed.set()
        self._freed = anyio.Event()

    def _refusal(self, name: str, value: float) -> GatewayError:
        self.exhausted = self.exhausted or name
        return GatewayError(429, f"the budget of this run is used up ({name}={value})", name, kind="insufficient_quota")
