"""Deadlines for answers of the engine: the caller's deadline, also in its threads."""

from __future__ import annotations

import math
from contextvars import ContextVar

import anyio

RESPONSE_DEADLINE: ContextVar[float] = ContextVar("RESPONSE_DEADLINE", default=math.inf)
"""The time of `time.monotonic` after which no answer of an engine is awaited."""


def deadline() -> float:
    """Return the caller's deadline on the clock of `anyio.current_time`; infinite if there is none or it has passed."""
    effective = anyio.current_effective_deadline()
    return effective if effective > anyio.current_time() else math.inf
