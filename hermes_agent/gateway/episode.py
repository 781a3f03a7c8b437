"""The episode of a harness: it runs in a slot, its model calls are answered, and its end has a cause."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from hermes_agent.episode import TRAINABLE, Episode, EpisodeError, Finish
from hermes_agent.errors import ModelError
from hermes_agent.gateway.capture import Capture, LeftRequest
from hermes_agent.gateway.gateway import ModelGateway
from hermes_agent.gateway.journal import CallJournal
from hermes_agent.gateway.options import Gateway
from hermes_agent.gateway.program import HarnessProgram, ProgramResult
from hermes_agent.gateway.tree import Node
from hermes_agent.messages import CompletionUsage
from hermes_agent.models.base import Model, SessionModel
from hermes_exec import Slot
from hermes_exec.errors import ErrorCause, ExecError
from hermes_exec.redact import mask, mask_data, spellings

logger = logging.getLogger(__name__)
NO_ANSWER = "NoAnswer"
"""The kind of the error of a program that ended without an answer of the model."""
_SMALL_SHARE = 0.5
_warned_of_share = False


class _End(NamedTuple):
    """The end of an episode. `error` is the failure that caused it, if any."""

    finish: Finish
    cause: ErrorCause
    error: EpisodeError | None = None


async def run_program_episode(
    slot: Slot,
    model: Model | SessionModel,
    program: HarnessProgram,
    gateway: Gateway,
    on_busy: Callable[[bool], None] | None = None,
) -> Episode:
    """Run a program in a slot until it ends, and return its episode.

    When this returns, the gateway is closed: no process that the program left gets an answer.

    Args:
        slot: The slot.
        model: The policy.
        program: The program.
        gateway: Options and budgets of its gateway.
        on_busy: As in `ModelGateway`.

    Raises:
        ExecError: If the gateway cannot listen in the slot.
    """
    started = time.monotonic()
    result: ProgramResult | None = None
    failure: Exception | None = None
    async with ModelGateway(slot, model, gateway, on_busy=on_busy) as served:
        try:
            result = await program.run(slot, served.env)
        except (ExecError, OSError) as error:
            failure = error
    capture, journal = served.capture, served.journal
    _warn_of_small_share(capture)
    secrets = spellings([served.key])
    if result is not None:
        result = replace(result, output=mask(result.output, secrets))
    end = _end_of(capture, journal, result, failure)
    main, nodes = capture.captured.main, capture.captured.nodes
    duration_s = time.monotonic() - started
    problems = [(turn, problem) for turn, node in enumerate(main, 1) for problem in node.completion.problems]
    errors = [EpisodeError(turn, "model", problem.kind, problem.message) for turn, problem in problems]
    if end.error is not None:
        errors.append(end.error)
    is_measure = all(problem.trainable for _, problem in problems)
    tokens = [node.completion.tokens for node in main]
    return Episode(
        messages=mask_data(main[-1].conversation if main else [{"role": "user", "content": program.task}], secrets),
        turns=len(nodes),
        finish=end.finish,
        tool_calls=(),
        reasoning=tuple(mask_data([node.completion.reasoning for node in main], secrets)),
        usage=capture.usage,
        cause=end.cause,
        trainable=end.finish in TRAINABLE and is_measure and bool(main),
        errors=tuple(replace(error, message=mask(error.message, secrets)) for error in errors),
        tools=tuple(mask_data(list(main[0].tools), secrets)) if main else (),
        duration_s=duration_s,
        tokens=tuple(turn for turn in tokens if turn is not None) if main and None not in tokens else None,
        completions=tuple(CompletionUsage(node.completion.usage, node.completion.finish_reason) for node in nodes),
        model_seconds=journal.busy_s,
        tool_seconds=max(0.0, duration_s - journal.busy_s),
        sampling=dict(gateway.sampling),
        captured=capture.captured,
        program=result,
    )


def _warn_of_small_share(capture: Capture) -> None:
    """Warn once in a process: all rollouts of a run have the same harness."""
    global _warned_of_share  # noqa: PLW0603
    captured = capture.captured
    if _warned_of_share or not captured.main or captured.main[0].completion.tokens is None:
        return
    if captured.main_share < _SMALL_SHARE:
        _warned_of_share = True
        logger.warning(
            "the main conversation of a harness has %d %% of the sampled ids: the others are in captured.sequences()",
            100 * captured.main_share,
        )


def _end_of(capture: Capture, journal: CallJournal, result: ProgramResult | None, failure: Exception | None) -> _End:
    """Return the end of an episode, of which several may apply."""
    turns = len(capture.captured.nodes)
    broken = failure or journal.bug
    if broken is not None and not (isinstance(broken, ExecError) and broken.cause is ErrorCause.POLICY):
        return _End("infra", _cause_of(broken), EpisodeError(turns, "infra", type(broken).__name__, str(broken)))
    if (error := capture.failure) is not None:
        cause = error.cause if isinstance(error, ModelError) else ErrorCause.INFRA
        return _End("model_error", cause, EpisodeError(turns, "model", type(error).__name__, str(error)))
    if result is not None and result.timed_out:
        return _End("deadline", ErrorCause.BUDGET)
    if (left := capture.left) is not None and result is not None and _gave_up(left, capture.captured.main, result):
        # A harness that gives up has failed because the model was slow, not because of the policy.
        why = f"the program gave up {left.waited_s:.0f} s after its last request; {result.explain()}"
        return _End("model_error", ErrorCause.INFRA, EpisodeError(turns, "model", "GivenUp", why))
    if capture.exhausted:
        return _End("max_turns" if capture.exhausted == "max_requests" else "budget", ErrorCause.BUDGET)
    if capture.context_exceeded:
        return _End(
            "context", ErrorCause.BUDGET, EpisodeError(turns, "model", "ContextExceeded", str(journal.last_error))
        )
    if not capture.captured.main:
        why = _explain_silence(capture, journal, result)
        return _End("infra", ErrorCause.TASK, EpisodeError(turns, "infra", NO_ANSWER, why))
    return _End("answered", ErrorCause.POLICY)


def _gave_up(left: LeftRequest, main: Sequence[Node], result: ProgramResult) -> bool:
    """Return whether a program ended because its last request got no answer: it failed, or the request had the results
    of the last calls of its main conversation, which some programs report without an exit code.
    """
    if result.signal is not None:
        return False
    return result.exit_code != 0 or (bool(main) and left.parent is main[-1] and bool(main[-1].completion.tool_calls))


def _cause_of(error: Exception) -> ErrorCause:
    if isinstance(error, ExecError):
        return error.cause
    # Of a program, only the directory that it starts in is an OSError.
    return ErrorCause.TASK if isinstance(error, OSError) else ErrorCause.INFRA


def _explain_silence(capture: Capture, journal: CallJournal, result: ProgramResult | None) -> str:
    """Return why a program got no answer."""
    if capture.left is not None:
        why = f"it left its last request after {capture.left.waited_s:.0f} s"
    elif journal.last_error is not None:
        why = f"its last request was refused: {journal.last_error}"
    else:
        why = "it sent no request"
    return f"the model gave the program no answer: {why}{'' if result is None else f'; {result.explain()}'}"
