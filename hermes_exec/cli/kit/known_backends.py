"""The backends that commands over all of them (`ps`, `reap`, `doctor`) talk to."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hermes_exec.backends.base import Backend
from hermes_exec.backends.registry import backend_names, config_type, make_backend
from hermes_exec.cli.kit.output import say
from hermes_exec.cli.kit.pools import settings_of
from hermes_exec.errors import BackendUnavailable, ConfigError

T = TypeVar("T")


def backend_of(name: str, settings: Mapping[str, Any]) -> Backend:
    """The backend of that name with what the settings of a pool have for it.

    Raises:
        ConfigError: one of them is wrong, or one that it needs is missing.
        BackendUnavailable: it is not installed.
    """
    fields = config_type(name).model_fields
    return make_backend(name, {key: value for key, value in settings.items() if key in fields})


def needs_options(name: str) -> bool:
    """Whether a backend can be had with its options alone."""
    return any(field.is_required() for field in config_type(name).model_fields.values())


async def ask_each(
    name: str | None,
    config: Path | None,
    options: list[str] | None,
    question: Callable[[Backend], Awaitable[list[T]]],
) -> list[T]:
    """Ask the backend that is named, by itself or in a file, or all that can be had here without options; those that
    cannot be reached, and hosts of a backend that cannot, are told in one line each.

    Raises:
        BackendUnavailable: the one that was asked for cannot be reached.
        ConfigError: it cannot be had with these options.
    """
    logs = logging.getLogger("hermes_exec.backends")
    logs.setLevel(min(logs.getEffectiveLevel(), logging.WARNING))
    settings = settings_of(name, None, config, options)
    name = settings.get("backend")
    if name is None and options:
        raise ConfigError("--option needs --backend, or a file that names one")
    answers: list[T] = []
    for each in [name] if name else [each for each in backend_names() if not needs_options(each)]:
        try:
            answers += await _ask(backend_of(each, settings), question)
        except BackendUnavailable as error:
            if name:
                raise
            say(f"{each} is left out: {error}")
    return answers


async def _ask(backend: Backend, question: Callable[[Backend], Awaitable[list[T]]]) -> list[T]:
    try:
        return await question(backend)
    finally:
        await backend.aclose()
