"""What an episode was: its messages, how it ended, and whether it may be trained on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from hermes_agent.messages import CallState, Message, TokenUsage, TurnTokens, message_text
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
"""How an episode ended.

`answered`: the model wrote an answer without calls. `max_turns`: the turns or the tool calls were used up.
`max_tokens`: an answer was cut. `context`: the conversation no longer fits. `empty`: the model said nothing.
`content_filter`: the provider withheld what it said. `budget`: tokens, cost or tool time of the episode were used up.
`deadline`: its time was over. `model_error`: no completion could be had. `infra`: the slot, a hook or this library
failed. `cancelled`: called off.
"""

TRAINABLE: frozenset[Finish] = frozenset({"answered", "max_turns", "max_tokens", "context", "budget"})
"""The ends of which a score says something about the model. A deadline is not among them, for waiting for a model
service counts in it; nor is a context that was full before the first turn.
"""


@dataclass(frozen=True)
class CallRecord:
    """One tool call and its result. `state` is how far it came: `not_begun` (malformed, blocked, over a budget, or the
    episode ended before), `begun` (the episode ended while it ran: it may have had effects), or `ended`. `duration_s`
    is the time that it ran. `runs_on` says where the tool works; `images` are the PNG images of its result, whether the
    model was shown them or not.
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
        """Whether the model wrote a call of a tool that it has, with arguments that fit the tool's schema."""
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
    """Something that went wrong: `where` is model, call, tool or infra; `kind` is the stable name of the error."""

    turn: int
    where: Literal["model", "call", "tool", "infra"]
    kind: str
    message: str


_WITHOUT_ERROR = frozenset({"deadline", "cancelled", "content_filter"})


def ending_error(finish: str, errors: Iterable[EpisodeError]) -> EpisodeError | None:
    """Return the error that ended an episode or keeps it from being scored; None where that is no error, as at a
    deadline.

    Of several failures of a sandbox this is the first: the calls that it called off only follow from it.
    """
    every_error = tuple(errors)
    infra = next((error for error in every_error if error.where == "infra"), None)
    if infra is not None or finish in _WITHOUT_ERROR:
        return infra
    # After earlier ones, which are problems of an answer, the model went on.
    return next((error for error in reversed(every_error) if error.where == "model"), None)


class CallCounts(NamedTuple):
    """Calls of an episode: all that the model wrote, those that fit a schema, and those that were begun, by whether the
    tool did what was asked.
    """

    attempted: int
    schema_valid: int
    executed_ok: int
    executed_error: int


@dataclass(frozen=True)
class Episode:
    """One finished run of an `AgentLoop`.

    `messages` starts with the messages given and only grows. `turns` counts completions, `reasoning` has one entry a
    turn (None where the model gave none). `cause` says who caused the end (`policy`: the model);
    `trainable` is False where a score would say nothing about the model. `tokens` has one entry a turn for models that
    tell the ids (`hermes_agent.tokens.sequence` joins them), else it is None. `compacted` says that the model did not
    see all of the messages each time: the tokens are then not one sequence.
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

    @property
    def answer(self) -> str | None:
        """The text of the last message if it is the model's and calls no tool; else None."""
        last = self.messages[-1] if self.messages else {}
        return message_text(last) if last.get("role") == "assistant" and not last.get("tool_calls") else None

    @property
    def failure(self) -> EpisodeError | None:
        """The error that ended the episode or keeps it from being scored; None where there is none."""
        return None if self.trainable else ending_error(self.finish, self.errors)

    @property
    def counts(self) -> CallCounts:
        """How many calls the model wrote, and what became of them."""
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
        image; empty when they do.
        """
        return export_problem(self.messages, self.to_sharegpt())
