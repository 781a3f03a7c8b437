"""How long an answer of the engine is waited for: until the deadline of the caller, in its threads too."""

from __future__ import annotations

import math
from contextvars import ContextVar

import anyio

ANSWERED_UNTIL: ContextVar[float] = ContextVar("ANSWERED_UNTIL", default=math.inf)
"""The moment of `time.monotonic` past which no answer of an engine is waited for."""


def deadline() -> float:
    """That of the caller, as `anyio.current_time` counts; infinite without one and where it is cancelled already."""
    found = anyio.current_effective_deadline()
    return found if found > anyio.current_time() else math.inf
