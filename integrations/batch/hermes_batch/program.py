"""The program of a run: its setting, what excludes it, its columns of a record, and the stop if it gets no answers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TypedDict

from hermes_agent import Episode, RolloutResult
from hermes_agent.gateway import Captured, Harness, harness
from hermes_agent.gateway.episode import NO_ANSWER
from hermes_agent.gateway.harnesses import RECIPES
from hermes_agent.gateway.program import TASK_FIELD
from hermes_batch.task import Task
from hermes_exec import ConfigError

Program = str | Sequence[str] | Harness
"""A program as `hermes_agent.Rollout` takes it."""

EXCLUDED_SETTINGS = (
    *("toolsets", "tools", "tool_options", "distribution", "system_prompt", "context", "hooks"),
    *("parallel_calls", "max_tool_calls", "max_tool_seconds", "max_tokens_total"),
)
"""The settings of `BatchConfig` for the agent loop, whose place the program takes."""

_CHARACTERS = 1_000
_FIRST_PROGRAMS = 8


class ProgramFacts(TypedDict):
    """The program of a rollout (at most 1,000 characters), its exit code (-1: it did not run or did not end), the
    beginning and end of its output, the number of conversations that it began, and of the sequences that they are for a
    trainer. Empty, -1 and 0 without a program.
    """

    program: str
    program_exit_code: int
    program_output: str
    roots: int
    sequences: int


class FirstPrograms:
    """Stops a run if none of the first programs got an answer, as without the harness in the image: each prompt would
    have to be repeated.

    Args:
        continuation: How to continue the run, for the error message.
        has_answers: Whether the model has answered a program in an earlier invocation.
    """

    def __init__(self, continuation: str, *, has_answers: bool) -> None:
        self._continuation, self._has_answers = continuation, has_answers
        self._silent = 0

    def note(self, result: RolloutResult) -> None:
        """Note the end of a rollout. One without a program does not count.

        Raises:
            ConfigError: If each of the first programs ended without an answer.
        """
        episode, failure = result.episode, result.failure
        if episode is None or episode.captured is None:
            return
        self._has_answers |= bool(episode.captured.nodes)
        if failure is None or failure.kind != NO_ANSWER:
            return
        self._silent += 1
        if self._silent >= _FIRST_PROGRAMS and not self._has_answers:
            raise ConfigError(
                f"the run was stopped because none of the first {self._silent} programs got an answer: "
                f"{failure.message}; correct its image or its PATH, and continue: {self._continuation}; "
                "or begin a new run for another program"
            )


def parse_program(program: str | Sequence[str]) -> Harness | tuple[str, ...]:
    """Return a recipe, or the program and its arguments.

    A text that begins with the name of a recipe is this recipe with further arguments, unless it has `{task}`: a recipe
    has a place for the task, and `codex` is also the name of a program.

    Raises:
        ConfigError: If it is empty, or a text that is not quoted correctly.
    """
    try:
        argv = tuple(shlex.split(program) if isinstance(program, str) else program)
    except ValueError as error:
        raise ConfigError(f"program: {program!r} cannot be split into arguments: {error}") from None
    if not argv or not argv[0]:
        raise ConfigError(f"program is empty; give the name of a recipe ({', '.join(RECIPES)}), or a command")
    if isinstance(program, str) and argv[0] in RECIPES and not any(TASK_FIELD in argument for argument in argv):
        return harness(*argv)
    return argv


def check_task(task: Task) -> None:
    """Check that a program can work on a task.

    Raises:
        ConfigError: If the task has anything but one text for the program, or options of the agent loop.
    """
    if task.system is not None:
        raise ConfigError("system: a program has its own system message, which a row cannot set")
    if task.toolsets is not None:
        raise ConfigError("toolsets: a program has its own tools, which a row cannot set")
    if task.messages is not None and _is_conversation(task):
        raise ConfigError("messages: a program gets one text; give a prompt, or one user message without images")


def _is_conversation(task: Task) -> bool:
    (message, *others) = task.beginning
    return bool(others) or message["role"] != "user" or not isinstance(message["content"], str)


def describe_program(program: Program | None, episode: Episode | None) -> ProgramFacts:
    """Return the columns of a rollout's program."""
    captured, end = (None, None) if episode is None else (episode.captured, episode.program)
    return ProgramFacts(
        program=_format_program(program),
        program_exit_code=-1 if end is None else end.exit_code,
        program_output="" if end is None else end.output,
        roots=0 if captured is None else len(captured.roots),
        sequences=0 if captured is None else _count_sequences(captured),
    )


def _format_program(program: Program | None) -> str:
    if isinstance(program, Harness):
        return program.name
    text = program if isinstance(program, str) else shlex.join(program or ())
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"


def _count_sequences(captured: Captured) -> int:
    """Return the length of `Captured.sequences()`, also for a model without token ids."""
    delivered = {node for node in captured.nodes if node.trained and node.delivered}
    return len(delivered - {node.parent for node in delivered})
