"""The backends that commands over all of them (`ps`, `reap`) talk to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hermes_exec.backends.base import Backend
from hermes_exec.backends.registry import backend_names, make_backend
from hermes_exec.cli.output import say
from hermes_exec.errors import BackendUnavailable


@asynccontextmanager
async def each_usable(name: str | None) -> AsyncIterator[list[Backend]]:
    """Yield the backend of that name, or all that can be reached here; those that cannot are told in one line each.

    Raises:
        BackendUnavailable: the one that was asked for cannot be reached.
    """
    usable: list[Backend] = []
    try:
        for each in [name] if name else backend_names():
            try:
                usable.append(make_backend(each))
            except BackendUnavailable as error:
                if name:
                    raise
                say(f"{each} is left out: {error}")
        yield usable
    finally:
        for backend in usable:
            await backend.aclose()
