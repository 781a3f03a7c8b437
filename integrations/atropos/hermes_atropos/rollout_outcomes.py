"""Outcomes of rollouts: whether a reroll may help, why a rollout failed, and its verdict."""

from __future__ import annotations

from dataclasses import replace

from hermes_agent import AccessRefused, CheckFailed, RolloutResult, Verdict
from hermes_agent.rewards import to_float
from hermes_agent.scoring import check_verdict, is_work_error
from hermes_atropos.errors import EnvironmentMistake, ServerReachable
from hermes_exec import ConfigError, ErrorCause, ExecError


class RolloutFailed(Exception):
    """Raised when a rollout of a group fails for good."""

    def __init__(self, result: RolloutResult, rerolls: int) -> None:
        super().__init__(explain_outcome(result) + (f" (rerolls: {rerolls})" if rerolls else ""))
        self.cause = result.cause
        errors = () if result.episode is None else result.episode.errors
        self.refused = any(error.kind == AccessRefused.__name__ for error in errors)
        """Whether the key was refused, which fails every group."""
        self.mistake = isinstance(result.exception, EnvironmentMistake | ServerReachable)
        self.settled = result.cause is ErrorCause.CONFIG or _is_bug(result)


def mark_for_reroll(result: RolloutResult) -> RolloutResult:
    """Return the result. If a hook raised an error because it could not read the model's output, mark the result for a
    reroll.
    """
    raised = result.exception is not None and not isinstance(result.exception, ExecError)
    return replace(result, cause=ErrorCause.INFRA) if raised and result.cause is ErrorCause.CONFIG else result


def find_reroll_cause(result: RolloutResult) -> str:
    """Return why a rollout runs again: `hook` if the code of the environment raised, else the cause of its result."""
    return "hook" if result.exception is not None and _is_code_error(result.exception) else str(result.cause)


def judge_reward_error(error: Exception, on_error: str) -> Verdict:
    """Return the reward 0 for an error that the code of a reward raised, if `on_error` is "zero".

    Raises:
        EnvironmentMistake: If `on_error` is "stop".
        Exception: The error itself if `on_error` is "reroll", or if the slot, its host or a check failed.
    """
    if on_error == "reroll" or not _is_code_error(error):
        raise error
    message = f"the reward raised {type(error).__name__}: {error}"
    if on_error == "stop":
        raise EnvironmentMistake(f"{message} (--env.on_reward_error stop)") from error
    return Verdict(0.0, solved=False, output=message)


def _is_code_error(error: Exception) -> bool:
    """Return whether the code of a hook raised an error, and neither a slot nor its host nor a check failed."""
    return is_work_error(error) or not isinstance(error, ExecError | OSError | CheckFailed)


def is_final(result: RolloutResult) -> bool:
    """Return whether a reroll would have the same outcome."""
    return result.cause in (ErrorCause.CONFIG, ErrorCause.TASK) or _is_prompt_too_long(result)


def _is_bug(result: RolloutResult) -> bool:
    """Return whether a hook of the environment raised an unexpected error."""
    return result.exception is not None and not isinstance(result.exception, ExecError | OSError | CheckFailed)


def _is_prompt_too_long(result: RolloutResult) -> bool:
    """Return whether the prompt leaves no room for an answer."""
    return result.finish == "context" and result.episode is not None and not result.episode.turns


def explain_outcome(result: RolloutResult) -> str:
    """Return the reason why a rollout has no result."""
    error = result.failure
    description = result.finish if error is None else f"{result.finish}: {error.kind}: {error.message}"
    if isinstance(result.exception, EnvironmentMistake):
        description = f"the code of the environment: {result.exception}"
    elif _is_bug(result) and error is not None:
        description = f"the code of the environment: {error.kind}: {error.message}"
    return description + (" (limited by --env.max_token_length)" if _is_prompt_too_long(result) else "")


def to_verdict(value: object) -> Verdict:
    """Return a reward as a Verdict.

    Raises:
        EnvironmentMistake: If the reward is not a finite number.
    """
    try:
        if isinstance(value, Verdict):
            return check_verdict(value, "it")
        reward = to_float(value)
    except ConfigError as error:
        raise EnvironmentMistake(str(error)) from None
    except ValueError as error:
        raise EnvironmentMistake(f"a reward must be a finite number or a Verdict: {error}") from None
    return Verdict(reward, solved=reward >= 1)
