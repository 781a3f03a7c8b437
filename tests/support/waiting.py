"""Waiting for what another process does, where nothing but its effect can be seen."""

from __future__ import annotations

from collections.abc import Callable

import anyio


async def until(condition: Callable[[], object], patience_s: float = 60.0) -> None:
    """Wait for this to become true."""
    for _ in range(round(patience_s / 0.02)):
        if condition():
            return
        await anyio.sleep(0.02)
    raise AssertionError(f"not within {patience_s:g} s")
