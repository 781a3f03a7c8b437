"""Wrappers for the hooks of an environment. They separate mistakes in the author's code from failures of the model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Protocol

from hermes_agent.rewards import show_value
from hermes_atropos.errors import EnvironmentMistake
from hermes_exec import ConfigError, ErrorCause
from hermes_exec.aio.loop import raise_stray_cancellation

logger = logging.getLogger(__name__)
_MISTAKES = (EnvironmentMistake, NameError, ImportError)
"""Exceptions that show a mistake in the code, whatever the model wrote: every other rollout would fail too."""
_ATROPOS_CALLS = ("setup", "get_next_item", "postprocess_histories", "evaluate")


class RunControl(Protocol):
    """The part of a run that failing hooks control."""

    def stop(self, why: str, cause: ErrorCause | None) -> None:
        """Stop the run."""

    def drop_broken(self, author: str, error: Exception) -> None:
        """Count a group that was dropped because the environment's code raised an error."""


def check_hooks(env_class: type[Any], base: type[Any]) -> None:
    """Raise ConfigError if an environment does not define a required hook."""
    missing = [name for name in ("get_next_item", "format_prompt") if getattr(env_class, name) is getattr(base, name)]
    if env_class.compute_reward is base.compute_reward and (
        env_class.verify_and_score_trajectory is base.verify_and_score_trajectory
    ):
        missing.append("compute_reward")
    if missing:
        raise ConfigError(f"{env_class.__name__} has no {' and no '.join(missing)}")


@contextmanager
def translate_hook_errors(env: object, method: str) -> Iterator[None]:
    """Raise EnvironmentMistake, which names the method, if an environment's code is wrong or would exit the process
    (SystemExit and similar). A CancelledError that nobody requested becomes a RuntimeError.
    """
    author = f"{type(env).__name__}.{method}"
    try:
        with raise_stray_cancellation(author):
            yield
    except _MISTAKES as error:
        message = str(error)
        if not isinstance(error, EnvironmentMistake):
            logger.error("%s is wrong", author, exc_info=error)
            message = f"{type(error).__name__}: {error}"
        raise EnvironmentMistake(f"{author}: {message}") from error
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        raise EnvironmentMistake(f"{author}: it raised {error!r}, which would end the process") from error


def guard_hooks(env: object, run: RunControl) -> None:
    """Wrap the hooks that atroposlib calls in `translate_hook_errors`. A mistake in a hook stops the run, even where
    atroposlib would only log it.
    """

    def wrap(method: str, hook: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @wraps(hook)
        async def call(*args: object, **kwargs: object) -> object:
            try:
                with translate_hook_errors(env, method):
                    result = await hook(*args, **kwargs)
                    if method == "postprocess_histories":
                        _check_groups(result)
                    return result
            except EnvironmentMistake as error:
                run.stop(str(error), error.cause)
                raise
            except Exception as error:
                if method == "postprocess_histories":
                    run.drop_broken(f"{type(env).__name__}.{method}", error)
                raise

        return call

    for method in _ATROPOS_CALLS:
        setattr(env, method, wrap(method, getattr(env, method)))


def _check_groups(result: object) -> None:
    groups = result if isinstance(result, list) and result else [result]
    if not all(isinstance(group, MutableMapping) for group in groups):
        raise EnvironmentMistake(f"it must return a group or a list of groups, not {show_value(result)}")
