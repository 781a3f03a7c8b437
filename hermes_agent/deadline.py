"""The time limit of an episode, which stands still while the endpoint of its model is away."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import anyio


class Deadline:
    """The deadline of a cancel scope. `hold` stops the clock and `resume` starts it again; repeated calls have no
    effect.
    """

    def __init__(self, scope: anyio.CancelScope) -> None:
        self._scope = scope
        self._left_s: float | None = None

    def hold(self) -> None:
        """Stop the clock."""
        if self._left_s is None:
            self._left_s = self._scope.deadline - anyio.current_time()
            self._scope.deadline = math.inf

    def resume(self) -> None:
        """Let the clock go on with the remaining time."""
        if self._left_s is not None:
            self._scope.deadline = anyio.current_time() + self._left_s
            self._left_s = None


_CURRENT: ContextVar[Deadline | None] = ContextVar("deadline of the episode", default=None)


def current_deadline() -> Deadline | None:
    """Return the deadline of the episode that this code runs in. None outside of episodes."""
    return _CURRENT.get()


@contextmanager
def episode_deadline(scope: anyio.CancelScope) -> Iterator[None]:
    """Make the deadline of `scope` the deadline of the episode."""
    token = _CURRENT.set(Deadline(scope))
    try:
        yield
    finally:
        _CURRENT.reset(token)
