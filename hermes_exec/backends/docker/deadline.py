"""How long an answer of the engine is waited for: until the deadline of the caller, in its threads too."""

from __future__ import annotations

import math
from contextvars import ContextVar

import anyio

RESPONSE_DEADLINE: ContextVar[float] = ContextVar("RESPONSE_DEADLINE", default=math.inf)
"""The moment of `time.monotonic` past which no answer of an engine is waited for."""


def deadline() -> float:
    """The caller's deadline on the clock of `anyio.current_time`; infinite where it has none or has passed it."""
    effective = anyio.current_effective_deadline()
    return effective if effective > anyio.current_time() else math.inf
