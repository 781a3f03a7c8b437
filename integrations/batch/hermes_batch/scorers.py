"""Scorers: functions of the caller that give each episode its reward."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import anyio.from_thread

from hermes_agent import CheckFailed, Episode, Verdict
from hermes_agent.rewards import show_value, to_bool, to_float
from hermes_agent.scoring import check_verdict
from hermes_batch.references import load_reference
from hermes_batch.task import Task
from hermes_exec import Slot, blocking
from hermes_exec.aio.threads import call_in_daemon_thread
from hermes_exec.errors import ConfigError, ExecError
from hermes_exec.tools import HostTool

ScoreFunction = Callable[..., object]
"""A function of (slot, episode) or of (slot, episode, task).

It returns a bool, a number, a mapping with `reward`, or a `Verdict`.
"""
_WITHOUT_TASK, _WITH_TASK = 2, 3
_FIRST_SCORES = 8
"""The number of failures after which a run whose scorer has returned no score is stopped."""
logger = logging.getLogger(__name__)


class ScorerFailed(ConfigError):
    """Raised when a scorer raised an exception or returned no score. The model is not to blame."""


def count_parameters(function: ScoreFunction) -> int:
    """Return how many arguments a scorer takes: 2 without the task, or 3.

    Raises:
        ConfigError: If it takes other arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return _WITHOUT_TASK
    for count in (_WITH_TASK, _WITHOUT_TASK):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        return count
    name = getattr(function, "__qualname__", repr(function))
    raise ConfigError(f"{name} takes {signature}; a scorer takes (slot, episode) or (slot, episode, task)")


def load_scorer(scorer: object) -> ScoreFunction:
    """Return a scorer that is given as a function or by a text.

    Raises:
        ConfigError: If the text names no function.
    """
    function = load_reference(scorer) if isinstance(scorer, str) else scorer
    if not callable(function):
        raise ConfigError(f"give a function of (slot, episode) or (slot, episode, task), not {function!r}")
    return function


def load_tools(tools: Sequence[object]) -> tuple[str | HostTool, ...]:
    """Return tools of which some are named by a text (`file.py:name`): a host tool, or a list of them.

    Raises:
        ConfigError: If a text names nothing, or something else.
    """
    loaded: list[str | HostTool] = []
    for tool in tools:
        named = load_reference(tool) if isinstance(tool, str) and ":" in tool else tool
        for each in named if isinstance(named, list | tuple) else (named,):
            if not isinstance(each, str | HostTool):
                raise ConfigError(f"{tool!r} is {show_value(each)}, not a tool made with @tool")
            loaded.append(each)
    return tuple(loaded)


class FunctionScorer:
    """Calls a scorer for the episodes of one prompt, and returns its score as a `Verdict`.

    An async function gets the slot. Any other function runs in a thread, with the blocking form of the slot.

    Args:
        function: The scorer.
        task: The prompt.
        timeout_s: The longest time of a call. A thread that exceeds it is abandoned, and does not keep the
            program from ending.
    """

    def __init__(self, function: ScoreFunction, task: Task, timeout_s: float) -> None:
        self._function, self._timeout_s = function, timeout_s
        self._rest = (task,) if count_parameters(function) == _WITH_TASK else ()

    async def __call__(self, slot: Slot, episode: Episode) -> Verdict:
        """Return the verdict on an episode.

        Raises:
            CheckFailed: If the scorer takes too long.
            ScorerFailed: If the scorer raises an exception, or returns no score.
            ExecError: If the slot fails.
        """
        score: object = None
        with anyio.move_on_after(self._timeout_s) as within:
            score = await self._call(slot, episode)
        if within.cancelled_caught:
            raise CheckFailed(f"the scorer took longer than {self._timeout_s:g} s")
        return to_verdict(score)

    async def _call(self, slot: Slot, episode: Episode) -> object:
        try:
            if _is_async(self._function):
                return await self._function(slot, episode, *self._rest)  # type: ignore[misc]  # it is async
            return await self._call_in_thread(slot, episode)
        except (ExecError, CheckFailed):
            raise
        except (Exception, SystemExit) as error:  # unittest.main() and others raise SystemExit
            cause = _find_cause(error)
            logger.warning("the scorer raised %s: %s", type(cause).__name__, cause, exc_info=error)
            raise ScorerFailed(f"the scorer raised {type(cause).__name__}: {cause}") from error

    async def _call_in_thread(self, slot: Slot, episode: Episode) -> object:
        score: object = None
        raised: BaseException | None = None
        async with anyio.from_thread.BlockingPortal() as portal:
            call = partial(self._function, blocking.Slot(slot, portal), episode, *self._rest)
            try:
                score = await call_in_daemon_thread(call)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the portal would wrap it in a group
                raised = error
        if raised is not None:
            raise raised
        return score


def _find_cause(error: BaseException) -> BaseException:
    """Return the first error of a group, such as a task group raises, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class FirstScores:
    """Stops a run whose scorer has scored none of the first episodes, because each would have to be repeated.

    Args:
        continuation: How to continue the run, for the error message.
        has_scored: Whether an earlier invocation has scored an episode.
    """

    def __init__(self, continuation: str, *, has_scored: bool) -> None:
        self._continuation, self._has_scored = continuation, has_scored
        self._failures = 0

    def note(self, error: BaseException | None, *, scored: bool) -> None:
        """Note the end of an episode.

        Args:
            error: The error that ended it.
            scored: Whether it has a score.

        Raises:
            ConfigError: If the scorer has failed in each of the first episodes.
        """
        self._has_scored |= scored
        self._failures += isinstance(error, ScorerFailed)
        if self._failures >= _FIRST_SCORES and not self._has_scored:
            raise ConfigError(
                f"the run was stopped because no episode was scored, and {self._failures} failed: {error}; "
                f"correct the scorer and continue: {self._continuation}"
            )


def _is_async(function: ScoreFunction) -> bool:
    calls = (function, type(function).__call__) if not inspect.isroutine(function) else (function,)
    return any(map(inspect.iscoroutinefunction, calls))


def to_verdict(score: object) -> Verdict:
    """Return the score of a scorer as a verdict.

    True is reward 1 and False is reward 0. A number is solved if it is 1 or more. In a mapping, `reward` is the number,
    `solved` may say otherwise, and the other entries are the verdict's `info`.

    Raises:
        ScorerFailed: If it is none of these.
    """
    try:
        if isinstance(score, Verdict):
            return check_verdict(score, "a scorer")._replace(info=_to_info(score.info))
        if isinstance(score, Mapping):
            if "reward" not in score:
                raise ValueError(f"{show_value(dict(score))} has no reward")
            reward = to_float(score["reward"])
            solved = to_bool(score["solved"]) if "solved" in score else reward >= 1
            info = {name: value for name, value in score.items() if name not in ("reward", "solved")}
            return Verdict(reward, solved, info=_to_info(info))
        reward = to_float(score)
    except (TypeError, ValueError) as error:
        raise ScorerFailed(
            f"a scorer returns a bool, a number, a mapping with `reward`, or a Verdict: {error}"
        ) from None
    return Verdict(reward, reward >= 1)


def _to_info(info: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values as JSON types. A value that is none becomes a number or a text."""
    text = json.dumps({str(name): info[name] for name in info}, default=_to_json)
    values: dict[str, Any] = json.loads(text, parse_constant=str)
    return values


def _to_json(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): value[name] for name in value}
    if isinstance(value, set | frozenset):
        return list(value)
    if callable(to_list := getattr(value, "tolist", None)):  # arrays and scalars of numpy and torch
        with contextlib.suppress(Exception):
            return to_list()
    try:
        return to_float(value)
    except ValueError:
        return show_value(value)
