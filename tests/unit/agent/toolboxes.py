"""Small toolboxes with the interface that the loop needs, and nothing behind it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    content: str
    ok: bool = True
    error_kind: str | None = None
    duration_s: float = 0.01


class FunctionTools:
    """One tool, `do`, that is an async function of its arguments."""

    def __init__(self, function: Callable[[dict[str, Any]], Awaitable[str | Result]]) -> None:
        self._function = function
        self.calls: list[tuple[str, str, str | None]] = []

    @property
    def schemas(self) -> list[dict[str, Any]]:
        return [
            {"type": "function", "function": {"name": "do", "description": "Do it", "parameters": {"type": "object"}}}
        ]

    async def call(self, name: str, arguments: str, call_id: str | None = None) -> Result:
        self.calls.append((name, arguments, call_id))
        said = await self._function(json.loads(arguments))
        return said if isinstance(said, Result) else Result(json.dumps({"output": said}))


async def echo(arguments: dict[str, Any]) -> str:
    return str(arguments.get("x"))
