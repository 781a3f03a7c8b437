"""Reactions of a run to its model's endpoint: outages, refused requests, and answers that no parser reads."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import replace
from typing import Literal

import anyio

from hermes_agent import Completion, Episode, Hooks, ToolCall, Turn
from hermes_agent.parsers.unread_calls import UNREAD_CALLS
from hermes_batch.result import BatchResult
from hermes_exec import ConfigError

logger = logging.getLogger(__name__)
OnOutage = Literal["wait", "stop"]
FIRST_ANSWERS = 8
"""The number of answers or refusals after which a run that cannot succeed is stopped."""


class EndpointPolicy:
    """Knows whether the endpoint of a run answers, and stops a run whose model cannot be used.

    Args:
        result: The state of the run. An outage may set its `stopped`.
        on_outage: Whether to wait for an endpoint that is down, or to stop.
        continuation: How to continue a run that was stopped, for error messages.
        parser_advice: How to set a parser, for error messages.
        base_url: The URL of the endpoint, for error messages. Empty: there is none, or several.
    """

    def __init__(
        self, result: BatchResult, on_outage: OnOutage, continuation: str, parser_advice: str, base_url: str = ""
    ) -> None:
        self._result, self._on_outage = result, on_outage
        self._continuation, self._parser_advice = continuation, parser_advice
        self._address = f" at {base_url}" if base_url else ""
        self._has_answered = False
        """Whether the model has answered."""
        self._recovery: anyio.Event | None = None
        """Set when the endpoint, which is down now, answers again. None while it is up."""
        self._first_answers: list[str | None] = []
        """For each of the first answers, the calls that no parser has read."""
        self._refusals: list[str] = []
        """The reasons why the endpoint refused the requests of single prompts."""
        self._last_error = ""
        """Why the last request failed that was neither refused nor part of an outage."""

    @property
    def recovery(self) -> anyio.Event | None:
        """The event of the endpoint's next answer while it is down. None while it is up."""
        return self._recovery

    def add_hooks(self, hooks: Hooks | None) -> Hooks:
        """Return hooks that call these hooks, and note the answers of the model."""
        own = Hooks() if hooks is None else hooks

        def before_call(call: ToolCall) -> Awaitable[str | None] | str | None:
            self._note_answer()
            return None if own.before_call is None else own.before_call(call)

        def on_turn(turn: Turn) -> Awaitable[None] | None:
            self._note_completion(turn.completion)
            return None if own.on_turn is None else own.on_turn(turn)

        return replace(own, before_call=before_call, on_turn=on_turn)

    def _note_answer(self) -> None:
        self._has_answered = True
        self.end_outage()

    def note_program(self, episode: Episode) -> None:
        """Note the answers of the model to a program, which calls no hooks, when it has ended."""
        for node in episode.captured.nodes if episode.captured is not None else ():
            self._note_completion(node.completion)

    def _note_completion(self, completion: Completion) -> None:
        self._note_answer()
        if len(self._first_answers) < FIRST_ANSWERS:
            unread = (problem.message for problem in completion.problems if problem.kind == UNREAD_CALLS)
            self._first_answers.append(next(unread, None))

    def begin_outage(self, why: str) -> None:
        """Note that the endpoint is down, and stop the run if it is set so or if the endpoint has never answered."""
        if self._on_outage == "stop" or not self._has_answered:
            hint = "" if self._has_answered else "; it has answered no request of this run: check the base URL"
            self._result.stopped = why + hint
        if self._recovery is None:
            self._recovery = anyio.Event()

    def end_outage(self) -> None:
        """Note that the endpoint is up."""
        if self._recovery is not None:
            self._recovery.set()
            self._recovery = None

    def note_error(self, why: str) -> None:
        """Note that a request failed although the endpoint is up."""
        self._last_error = why
        self.end_outage()

    def note_refusal(self, why: str) -> None:
        """Note that the endpoint refused the requests of a prompt."""
        self._refusals.append(why)

    def check(self) -> None:
        """Check the answers and the refusals if there are enough of them.

        Raises:
            ConfigError: As `check_at_end` does.
        """
        if len(self._first_answers) == FIRST_ANSWERS:
            self._check_first_answers()
        if len(self._refusals) >= FIRST_ANSWERS:
            self._check_refusals()

    def check_at_end(self) -> None:
        """Check the answers and the refusals of a run, however few. Log a warning if each request failed.

        Raises:
            ConfigError: If the first answers all have calls that no parser has read, or if the endpoint has answered
                nothing and refused every prompt.
        """
        if self._result.kept:  # with a wrong parser no record is kept
            return
        self._check_first_answers()
        if len(self._refusals) >= self._result.total:
            self._check_refusals()
        if self._last_error and not self._has_answered:
            logger.warning("the endpoint%s answered no request; the last error: %s", self._address, self._last_error)

    def _check_first_answers(self) -> None:
        answers = self._first_answers
        if answers and all(answers):
            raise ConfigError(
                f"the run was stopped after {len(answers)} answers with calls that no parser reads: {answers[0]}; "
                f"{self._parser_advice}"
            )

    def _check_refusals(self) -> None:
        refusals = self._refusals
        if refusals and not (self._has_answered or self._result.kept):
            raise ConfigError(
                "the run was stopped because the model cannot be used: "
                f"prompts refused: {len(refusals)}, answered: none; the last refusal{self._address}: {refusals[-1]}; "
                f"continue it: {self._continuation}"
            )
