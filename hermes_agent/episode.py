"""What an episode was: its messages, how it ended, and whether it may be trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hermes_agent.messages import Message, TokenUsage
from hermes_agent.trajectories.sharegpt import Turn, sharegpt
from hermes_exec.errors import ErrorCause

Finish = Literal["answered", "max_turns", "max_tokens", "context", "model_error", "infra", "cancelled"]
"""How an episode ended.

`answered`: the model wrote an answer without calls. `max_turns`: the turns or the tool calls were used up.
`max_tokens`: an answer was cut. `context`: the conversation no longer fits. `model_error`: no completion could be had.
`infra`: the slot or this library failed. `cancelled`: called off.
"""


@dataclass(frozen=True)
class CallRecord:
    """One tool call and what came of it. `executed` is False for a call that never reached the toolbox: not
    understood, over a budget, or called off.
    """

    turn: int
    call_id: str
    name: str
    arguments: str
    content: str
    ok: bool
    error_kind: str | None
    duration_s: float
    executed: bool = True


@dataclass(frozen=True)
class EpisodeError:
    """Something that went wrong: `where` is model, call, tool or infra; `kind` is the stable name of the error."""

    turn: int
    where: Literal["model", "call", "tool", "infra"]
    kind: str
    message: str


@dataclass(frozen=True)
class Episode:
    """One finished run of an `AgentLoop`.

    `messages` starts with the messages given and only grows. `turns` counts completions, `reasoning` has one entry a
    turn (None where the model gave none). `cause` says who caused the end (`policy`: the model);
    `trainable` is False where a score would say nothing about the model.
    """

    messages: list[Message]
    turns: int
    finish: Finish
    tool_calls: tuple[CallRecord, ...]
    reasoning: tuple[str | None, ...]
    usage: TokenUsage
    cause: ErrorCause
    trainable: bool
    errors: tuple[EpisodeError, ...]
    tools: tuple[dict[str, Any], ...]
    duration_s: float

    @property
    def answer(self) -> str | None:
        """The text of the last message if it is the model's and calls no tool; else None."""
        last = self.messages[-1] if self.messages else {}
        return (
            str(last.get("content") or "") if last.get("role") == "assistant" and not last.get("tool_calls") else None
        )

    def to_sharegpt(self) -> list[Turn]:
        """The conversation as ShareGPT turns `{"from", "value"}`, as in `hermes_agent.trajectories.sharegpt`."""
        return sharegpt(self.messages, self.tools)
