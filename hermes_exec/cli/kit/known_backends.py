"""The backends that commands over all of them (`ps`, `reap`) talk to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from hermes_exec.backends.base import Backend
from hermes_exec.backends.registry import backend_names, make_backend
from hermes_exec.cli.kit.output import say
from hermes_exec.errors import BackendUnavailable

T = TypeVar("T")


async def ask_each(name: str | None, question: Callable[[Backend], Awaitable[list[T]]]) -> list[T]:
    """Ask the backend of that name, or all that can be reached here; those that cannot are told in one line each.

    Raises:
        BackendUnavailable: the one that was asked for cannot be reached.
    """
    answers: list[T] = []
    for each in [name] if name else backend_names():
        try:
            answers += await _ask(each, question)
        except BackendUnavailable as error:
            if name:
                raise
            say(f"{each} is left out: {error}")
    return answers


async def _ask(name: str, question: Callable[[Backend], Awaitable[list[T]]]) -> list[T]:
    backend = make_backend(name)
    try:
        return await question(backend)
    finally:
        await backend.aclose()
