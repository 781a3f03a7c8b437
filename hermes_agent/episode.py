"""The record of an episode: its messages, its end, and whether it may be trained on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from hermes_agent.gateway.program import ProgramResult
from hermes_agent.gateway.tree import Captured
from hermes_agent.messages import CallState, CompletionUsage, Message, TokenUsage, TurnTokens, message_text
from hermes_agent.trajectories.sharegpt import ShareGPTTurn, sharegpt
from hermes_agent.trajectories.sharegpt_reader import export_problem
from hermes_exec.errors import ErrorCause

Finish = Literal[
    "answered",
    "max_turns",
    "max_tokens",
    "context",
    "empty",
    "content_filter",
    "budget",
    "deadline",
    "model_error",
    "infra",
    "cancelled",
]
"""The end of an episode.

`answered`: the model wrote an answer without calls. `max_turns`: the turns or the tool calls were used up.
`max_tokens`: an answer was cut. `context`: the conversation no longer fits. `empty`: the model wrote nothing.
`content_filter`: the provider withheld the answer. `budget`: tokens, cost or tool time of the episode were used up.
`deadline`: its time was over. `model_error`: a completion failed. `infra`: the slot, a hook or this library failed.
`cancelled`: the caller cancelled it.
"""

TRAINABLE: frozenset[Finish] = frozenset({"answered", "max_turns", "max_tokens", "context", "budget"})
"""The ends after which a score measures the model. A deadline is not among them, because it includes waiting for a
model service. Nor is a context that was full before the first turn.
"""


@dataclass(frozen=True)
class CallRecord:
    """One tool call and its result.

    Attributes:
        turn: The number of the turn, from 1.
        call_id: The id of the call.
        name: The name of the tool.
        arguments: The arguments as the model wrote them.
        content: The answer for the model.
        ok: Whether the tool did its work.
        error_kind: The stable name of the error, if there is one.
        duration_s: The run time of the call.
        state: The progress of the call: `not_begun` (malformed, blocked, over a budget, or the episode ended before),
            `begun` (the episode ended while it ran: it may have had effects), or `ended`.
        runs_on: Where the tool works.
        images: The PNG images of the result, whether or not the model saw them.
    """

    turn: int
    call_id: str
    name: str
    arguments: str
    content: str
    ok: bool
    error_kind: str | None
    duration_s: float
    state: CallState = "ended"
    runs_on: Literal["slot", "host"] = "slot"
    images: tuple[bytes, ...] = ()

    @property
    def schema_valid(self) -> bool:
        """Whether the model called a tool that it has, with arguments that fit the tool's schema."""
        return self.error_kind not in _INVALID


_INVALID = frozenset(
    {
        "malformed_call",
        "malformed_json",
        "unknown_tool",
        "unknown_argument",
        "missing_argument",
        "wrong_type",
        "bad_value",
    }
)


@dataclass(frozen=True)
class EpisodeError:
    """A failure in an episode: `where` is model, call, tool or infra; `kind` is the stable name of the error."""

    turn: int
    where: Literal["model", "call", "tool", "infra"]
    kind: str
    message: str


_WITHOUT_ERROR = frozenset({"deadline", "cancelled", "content_filter"})


def ending_error(finish: str, errors: Iterable[EpisodeError]) -> EpisodeError | None:
    """Return the error that ended an episode or prevents a score. None if there is no such error, as at a deadline.

    Of several failures of a sandbox this is the first: the calls that it cancelled fail because of it.
    """
    every_error = tuple(errors)
    infra = next((error for error in every_error if error.where == "infra"), None)
    if infra is not None or finish in _WITHOUT_ERROR:
        return infra
    # Earlier errors are problems of an answer after which the model went on.
    return next((error for error in reversed(every_error) if error.where == "model"), None)


class CallCounts(NamedTuple):
    """Counts of an episode's calls: written by the model, valid by schema, and run with or without success."""

    attempted: int
    schema_valid: int
    executed_ok: int
    executed_error: int


@dataclass(frozen=True)
class Episode:
    """One finished run of an `AgentLoop` or of a program.

    Attributes:
        messages: The conversation. It starts with the given messages and only grows.
        turns: The number of completions.
        finish: The end of the episode.
        tool_calls: All calls with their results.
        reasoning: The model's thinking, one entry per turn. None if the model returned none.
        usage: The tokens of all completions.
        cause: The cause of the end (`policy`: the model).
        trainable: Whether a score would measure the model.
        errors: Everything that went wrong.
        tools: The function schemas that the model had.
        duration_s: The duration of the episode.
        tokens: The token ids, one entry per turn, for models that return them (`hermes_agent.tokens.sequence` joins
            them). None for other models.
        compacted: Whether the model did not see all messages each time. The tokens are then not one sequence.
        completions: The usage of each completion, in order: of each turn, and of the closing answer if there was one.
        model_seconds: The time in completions, with outages of the endpoint.
        tool_seconds: The time in tool calls and their hooks.
        sampling: The sampling parameters of the loop that were not None.
        captured: All model calls of a program (`Rollout.program`), of which `messages`, `tokens`, `reasoning` and
            `tools` are the main conversation, while `turns`, `usage` and `completions` count all. None for the loop.
        program: The end of the program. None for the loop, and if the slot failed.
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
    tokens: tuple[TurnTokens, ...] | None = None
    compacted: bool = False
    completions: tuple[CompletionUsage, ...] = ()
    model_seconds: float = 0.0
    tool_seconds: float = 0.0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    captured: Captured | None = None
    program: ProgramResult | None = None

    @property
    def answer(self) -> str | None:
        """The text of the last message if the model wrote it and it calls no tool, else None."""
        last = self.messages[-1] if self.messages else {}
        return message_text(last) if last.get("role") == "assistant" and not last.get("tool_calls") else None

    @property
    def failure(self) -> EpisodeError | None:
        """The error that ended the episode or prevents a score. None if there is none."""
        return None if self.trainable else ending_error(self.finish, self.errors)

    @property
    def call_count(self) -> int:
        """The number of calls that the model wrote: of `tool_calls`, or of a program in all of its answers."""
        if self.captured is None:
            return len(self.tool_calls)
        return sum(len(node.completion.tool_calls) for node in self.captured.nodes)

    @property
    def counts(self) -> CallCounts:
        """The number of calls that the model wrote, by outcome."""
        calls = self.tool_calls
        executed = [call for call in calls if call.state != "not_begun"]
        return CallCounts(
            attempted=len(calls),
            schema_valid=sum(call.schema_valid for call in calls),
            executed_ok=sum(call.ok for call in executed),
            executed_error=sum(not call.ok for call in executed),
        )

    def to_sharegpt(self) -> list[ShareGPTTurn]:
        """Return the conversation as ShareGPT turns `{"from", "value"}`: a rendering of `messages`."""
        return sharegpt(self.messages, self.tools)

    @property
    def export_problem(self) -> str:
        """Why the turns of `to_sharegpt` do not re-read as `messages`, such as text that quotes `<tool_call>`, or an
        image. Empty if they do.
        """
        return export_problem(self.messages, self.to_sharegpt())
