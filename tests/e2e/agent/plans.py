"""Models that do what a prompt's plan says, so that many episodes at once are the same every time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hermes_agent import Completion, Message, TokenUsage
from hermes_agent.models.scripted import call

Step = str | list[str]
"""What a model says in a turn: a text, or shell commands for the tool `terminal`."""


def completion(step: Step, key: str) -> Completion:
    usage = TokenUsage(10, 5, 1)
    if isinstance(step, str):
        return Completion(step, usage=usage)
    calls = (call("terminal", {"command": c}, call_id=f"{key}-{at}") for at, c in enumerate(step))
    return Completion("", tuple(calls), usage=usage)


class PlanModel:
    """Answers the n-th turn of a conversation with the n-th step of the plan of its first user message."""

    model = "plan"

    def __init__(self, plans: Mapping[str, Sequence[Step]], on_turn: Callable[[str, int], None] | None = None) -> None:
        self._plans = plans
        self._on_turn = on_turn

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        prompt = str(next(m["content"] for m in messages if m["role"] == "user"))
        turn = sum(m["role"] == "assistant" for m in messages)
        if self._on_turn is not None:
            self._on_turn(prompt, turn)
        return completion(self._plans[prompt][turn], f"{turn}")


def wire(step: Step) -> dict[str, Any]:
    """The step as the message of a chat completions endpoint."""
    if isinstance(step, str):
        return {"content": step}
    calls = [
        {"id": f"c{at}", "type": "function", "function": {"name": "terminal", "arguments": json.dumps({"command": c})}}
        for at, c in enumerate(step)
    ]
    return {"content": None, "tool_calls": calls}
