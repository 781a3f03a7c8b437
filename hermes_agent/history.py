"""The growing record of one episode: messages are only ever added, so that a longer history starts with the shorter
one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Literal

from hermes_agent.episode import CallRecord, Episode, EpisodeError, Finish
from hermes_agent.messages import Answer, Completion, Message, TokenUsage, ToolCall, assistant_message, tool_message
from hermes_exec.errors import ErrorCause

_LOG = logging.getLogger(__name__)
_UNSCORED = frozenset({"model_error", "infra", "cancelled"})


class History:
    """Messages, calls, reasoning, usage and errors of one episode, and how they become an Episode."""

    def __init__(self, begin: Sequence[Message], tools: list[dict[str, Any]]) -> None:
        self.messages: list[Message] = deepcopy(list(begin))
        self.tools = tools
        self.turns = 0
        self.calls: list[CallRecord] = []
        self.pending: list[ToolCall] = []
        self.refused = False
        self._ids: set[str] = set()
        self._reasoning: list[str | None] = []
        self._usage = TokenUsage()
        self._errors: list[EpisodeError] = []
        self._started = time.monotonic()

    def add_completion(self, completion: Completion) -> None:
        """Begin a turn with what the model said. Its calls become `pending`, each with an id that no other call of the
        episode has.
        """
        self.turns += 1
        self._add(completion)

    def add_closing(self, question: Message, completion: Completion) -> None:
        """Record the closing answer. Calls in it are answered with an error and never run."""
        self.messages.append(question)
        self._add(completion)
        for call in self.pending:
            self.calls.append(
                CallRecord(
                    self.turns,
                    call.id,
                    call.name,
                    call.arguments,
                    "",
                    ok=False,
                    error_kind="no_calls_left",
                    duration_s=0.0,
                    executed=False,
                )
            )
            self.messages.append(
                tool_message(call, '{"error": "No more tool calls can be made.", "error_kind": "no_calls_left"}')
            )
        self.pending = []

    def add_answer(self, call: ToolCall, answer: Answer) -> None:
        """Add the result of a pending call; to be called in the order of the calls."""
        self.messages.append(tool_message(call, answer.content))
        self.calls.append(
            CallRecord(
                self.turns,
                call.id,
                call.name,
                call.arguments,
                answer.content,
                answer.ok,
                answer.error_kind,
                answer.duration_s,
                executed=answer.executed,
            )
        )
        self.refused = self.refused or answer.error_kind == "no_calls_left"
        if not answer.executed:
            self._errors.append(EpisodeError(self.turns, "call", answer.error_kind or "", call.error or answer.content))

    def add_error(self, where: Literal["model", "tool", "infra"], error: Exception) -> None:
        """Record an expected error."""
        self._errors.append(EpisodeError(self.turns, where, type(error).__name__, str(error)))

    def add_bug(self, where: Literal["model", "infra"], error: Exception) -> None:
        """Record an unexpected error, and log it with its traceback."""
        _LOG.error("an episode ended by %s", type(error).__name__, exc_info=error)
        self.add_error(where, error)

    def episode(self, finish: Finish, cause: ErrorCause) -> Episode:
        """The finished episode."""
        return Episode(
            messages=self.messages,
            turns=self.turns,
            finish=finish,
            tool_calls=tuple(self.calls),
            reasoning=tuple(self._reasoning),
            usage=self._usage,
            cause=cause,
            trainable=finish not in _UNSCORED,
            errors=tuple(self._errors),
            tools=tuple(self.tools),
            duration_s=time.monotonic() - self._started,
        )

    def _add(self, completion: Completion) -> None:
        self.pending = [self._with_own_id(call, index) for index, call in enumerate(completion.tool_calls)]
        self.messages.append(
            assistant_message(Completion(completion.content, tuple(self.pending), completion.reasoning))
        )
        self._reasoning.append(completion.reasoning)
        self._usage += completion.usage

    def _with_own_id(self, call: ToolCall, index: int) -> ToolCall:
        wanted = call.id or "call"
        name = wanted if call.id and wanted not in self._ids else f"{wanted}_{self.turns}_{index}"
        self._ids.add(name)
        return call._replace(id=name)
