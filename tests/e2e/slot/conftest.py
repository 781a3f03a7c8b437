"""The slot of most tests of slots."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hermes_exec import SandboxPool, Slot


@pytest.fixture
async def slot(anyio_backend: str) -> AsyncIterator[Slot]:
    """A slot on this machine."""
    async with SandboxPool("local") as pool, pool.slot() as slot:
        yield slot
