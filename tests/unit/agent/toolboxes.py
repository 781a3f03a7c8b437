"""Small toolboxes with the interface that the loop needs, no slot behind them, and answers that call them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hermes_agent import Completion, Episode, TokenUsage
from hermes_agent.messages import FinishReason
from hermes_agent.models.scripted import call
from hermes_exec.tools import Notice, ToolResult


def result(content: str, *, ok: bool = True, error_kind: str | None = None, name: str = "do") -> ToolResult:
    return ToolResult(name, content, {"content": content}, ok, error_kind, 0.01, "c")


class FunctionTools:
    """One tool, `do`, that is an async function of its arguments; by the name `look` it only reads."""

    def __init__(self, function: Callable[[dict[str, Any]], Awaitable[str | ToolResult]]) -> None:
        self._function = function
        self.calls: list[tuple[str, str, str | None]] = []
        self.forgotten = 0

    @property
    def schemas(self) -> list[dict[str, Any]]:
        return [
            {"type": "function", "function": {"name": "do", "description": "Do it", "parameters": {"type": "object"}}}
        ]

    def reads_only(self, name: str) -> bool:
        return name == "look"

    async def call(self, name: str, arguments: str, call_id: str | None = None) -> ToolResult:
        self.calls.append((name, arguments, call_id))
        said = await self._function(json.loads(arguments))
        return said if isinstance(said, ToolResult) else result(json.dumps({"output": said}))

    async def fit_turn(self, results: Sequence[ToolResult]) -> Sequence[ToolResult]:
        return results

    async def notices(self) -> Sequence[Notice]:
        return ()

    def forget_reads(self) -> None:
        self.forgotten += 1


async def echo(arguments: dict[str, Any]) -> str:
    return str(arguments.get("x"))


def ask(
    *xs: object, content: str = "", reasoning: str | None = None, finish: FinishReason = "stop", name: str = "do"
) -> Completion:
    """An answer with a call for each of these."""
    calls = tuple(call(name, {"x": x}, call_id=f"c{x}") for x in xs)
    return Completion(content, calls, reasoning, finish, TokenUsage(10, 5, 1))


def results(episode: Episode) -> list[str]:
    """What an episode's calls came to."""
    return [message["content"] for message in episode.messages if message["role"] == "tool"]
