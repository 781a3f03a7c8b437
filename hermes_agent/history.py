"""The growing record of one episode. Messages are only ever added, so a longer history starts with the shorter one."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal

from hermes_agent.episode import TRAINABLE, CallRecord, Episode, EpisodeError, Finish
from hermes_agent.hooks import HookError, Turn
from hermes_agent.messages import (
    FENCED_CALL,
    CallAnswer,
    Completion,
    CompletionUsage,
    Message,
    TokenUsage,
    ToolCall,
    TurnTokens,
    assistant_message,
    calls_of,
    content_of,
    image_parts,
    message_text,
    tool_message,
)
from hermes_agent.parsers.base import derive_id
from hermes_agent.parsers.json_text import dump
from hermes_exec.errors import ErrorCause, ExecError

logger = logging.getLogger(__name__)


class History:
    """The messages, calls, reasoning, usage and errors of one episode."""

    def __init__(self, begin: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        self.messages: list[Message] = deepcopy(list(begin))
        self.turns = 0
        self.calls: list[CallRecord] = []
        self.calls_of_code = 0
        self.pending: list[ToolCall] = []
        self.result_ids: list[str] = []
        self.refused = False
        self.compacted = False
        self.usage = TokenUsage()
        self.model_seconds = 0.0
        self.tool_seconds = 0.0
        self._tools = tuple(dict(tool) for tool in tools)
        self._on_host = {str(tool["function"]["name"]) for tool in tools if tool.get("runs_on") == "host"}
        self._ids = {call.id for message in begin for call in calls_of(message)}
        self._reasoning: list[str | None] = []
        self._tokens: list[TurnTokens] = []
        self._completions: list[CompletionUsage] = []
        self._errors: list[EpisodeError] = []
        self._spoiled = False
        self._started = time.monotonic()

    def add_completion(self, completion: Completion) -> None:
        """Begin a turn with the model's answer. Its calls become `pending`, each with an id.

        A call keeps the id that the model wrote if the turn's tokens are recorded or the provider refers to the id.
        Otherwise its id is unique in the episode.
        """
        self.turns += 1
        self.result_ids = [self._unique_id(call.id, index) for index, call in enumerate(completion.tool_calls)]
        as_sampled = completion.tokens is not None
        details = completion.provider_fields.get("reasoning_details")
        details = details if isinstance(details, list) else []
        referred = {detail.get("id") for detail in details if isinstance(detail, dict)}
        self.pending = [
            call if call.id and (as_sampled or call.id in referred) else call._replace(id=result_id)
            for call, result_id in zip(completion.tool_calls, self.result_ids, strict=True)
        ]
        self._add(completion, self.pending)

    def add_closing(self, completion: Completion) -> None:
        """Record the closing answer, which is not a turn."""
        self._add(completion, ())

    def add_answer(self, call: ToolCall, answer: CallAnswer) -> None:
        """Add the result of a pending call. Callers add results in the order of the calls."""
        self.messages.append(tool_message(call, answer.content, answer.images if answer.shows_images else ()))
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
                state=answer.state,
                runs_on="host" if call.name in self._on_host else "slot",
                images=answer.images,
            )
        )
        self.refused = self.refused or answer.error_kind == "no_calls_left"
        if answer.state != "ended":
            self._errors.append(EpisodeError(self.turns, "call", answer.error_kind or "", call.error or answer.content))

    def notices_for(self, completion: Completion) -> list[str]:
        """Return the notices for the model about its last answer.

        A call in a code fence is mentioned once per episode: a model that ends another answer with a fenced call means
        it as text.
        """
        fences = sum(error.kind == FENCED_CALL for error in self._errors)
        problems = (each for each in completion.problems if each.kind != FENCED_CALL or fences == 1)
        return [problem.notice for problem in problems if problem.notice is not None]

    def add_notices(self, texts: Sequence[str]) -> None:
        """Add texts for the model to the last result of the turn, which the model has not seen yet.

        Chat templates that alternate strictly allow no message between results and answer. After an answer without
        calls the texts become a message of the user.
        """
        last = self.messages[-1]
        if last.get("role") == "assistant":
            self.messages.append({"role": "user", "content": "\n\n".join(texts)})
            return
        content = message_text(last)
        try:
            result = json.loads(content)
        except (ValueError, RecursionError):
            result = None
        if isinstance(result, dict):
            before = result.get("notices")
            notices = [*(before if isinstance(before, list) else ()), *texts]
            text = dump({**result, "notices": notices})
        else:
            text = "\n\n".join([content, *texts])
        self.messages[-1] = {**last, "content": content_of(text, image_parts(last))}

    def turn(self, completion: Completion) -> Turn:
        """Return the current turn, once its calls have ended."""
        return Turn(self.turns, completion, tuple(call for call in self.calls if call.turn == self.turns))

    def add_error(self, where: Literal["model", "tool", "infra"], error: Exception) -> None:
        """Record an expected error."""
        self._errors.append(EpisodeError(self.turns, where, type(error).__name__, str(error)))

    def add_failure(self, error: Exception) -> ErrorCause:
        """Record a failure outside the model and its tools, and return its cause.

        If a hook failed because its own use of the slot failed, the slot's error is recorded.
        """
        if isinstance(error, HookError) and isinstance(error.__cause__, ExecError):
            error = error.__cause__
        if isinstance(error, ExecError):
            self.add_error("infra", error)
            return error.cause
        self.add_bug("infra", error)
        return ErrorCause.CONFIG if isinstance(error, HookError) else ErrorCause.INFRA

    def add_bug(self, where: Literal["model", "infra"], error: Exception) -> None:
        """Record an unexpected error, and log it with its traceback."""
        logger.error("an episode ended by %s", type(error).__name__, exc_info=error)
        self.add_error(where, error)

    def add_usage(self, completion: Completion) -> None:
        """Count the usage of a completion."""
        self.usage += completion.usage
        self._completions.append(CompletionUsage(completion.usage, completion.finish_reason))

    def episode(self, finish: Finish, cause: ErrorCause, sampling: Mapping[str, Any]) -> Episode:
        """Return the finished episode. `sampling` are its sampling parameters."""
        tokens = tuple(self._tokens) if self._tokens and len(self._tokens) == len(self._reasoning) else None
        # A service may cause an empty answer. With the sampled ids it is certain that the model wrote nothing.
        sampled = finish == "empty" and tokens is not None and tokens[-1].logprobs is not None
        return Episode(
            messages=self.messages,
            turns=self.turns,
            finish=finish,
            tool_calls=tuple(self.calls),
            reasoning=tuple(self._reasoning),
            usage=self.usage,
            cause=cause,
            trainable=(finish in TRAINABLE or sampled)
            and not self._spoiled
            and not (finish == "context" and self.turns == 0),
            errors=tuple(self._errors),
            tools=self._tools,
            duration_s=time.monotonic() - self._started,
            tokens=tokens,
            compacted=self.compacted,
            completions=tuple(self._completions),
            model_seconds=self.model_seconds,
            tool_seconds=self.tool_seconds,
            sampling={name: value for name, value in sampling.items() if value is not None},
        )

    def _add(self, completion: Completion, calls: Sequence[ToolCall]) -> None:
        self.messages.append(deepcopy(assistant_message(replace(completion, tool_calls=tuple(calls)))))
        self._reasoning.append(completion.reasoning)
        self.add_usage(completion)
        for problem in completion.problems:
            self._errors.append(EpisodeError(self.turns, "model", problem.kind, problem.message))
            self._spoiled = self._spoiled or not problem.trainable
        if completion.tokens is not None:
            self._tokens.append(completion.tokens)

    def _unique_id(self, call_id: str, index: int) -> str:
        """Return `call_id` if no other call of the episode has it, else a new id."""
        name = call_id if call_id and call_id not in self._ids else derive_id(call_id, self.turns, index)
        self._ids.add(name)
        return name
