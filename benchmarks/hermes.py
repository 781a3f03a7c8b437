"""This library, on the local and the Docker backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread

from benchmarks.container import ensure_image
from benchmarks.contender import OUTPUT_BYTES, OUTPUT_SCRIPT
from hermes_exec import SandboxPool
from hermes_exec.slot.slot import Slot


class Hermes:
    """One slot of this library."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot

    async def noop(self) -> None:
        """Run the empty command."""
        result = await self.slot.run(["bash", "-c", "true"])
        assert result.ok, result

    async def write(self, data: bytes) -> None:
        """Write a file."""
        await self.slot.files.write_bytes("f", data)

    async def read(self, data: bytes) -> None:
        """Read a file."""
        assert await self.slot.files.read_bytes("f") == data

    async def output(self) -> None:
        """Read a large output."""
        result = await self.slot.run(["bash", "-c", OUTPUT_SCRIPT], output_limit_bytes=2 * OUTPUT_BYTES)
        assert len(result.stdout_bytes) == OUTPUT_BYTES


@asynccontextmanager
async def open_local() -> AsyncIterator[Hermes]:
    """Yield a slot on this host."""
    async with SandboxPool("local") as pool, pool.slot() as slot:
        yield Hermes(slot)


@asynccontextmanager
async def open_docker() -> AsyncIterator[Hermes]:
    """Yield a slot that has its own container.

    Raises:
        ContenderMissing: If Docker is not available.
    """
    name = await anyio.to_thread.run_sync(ensure_image)
    async with SandboxPool("docker", image=name, network=False) as pool, pool.slot() as slot:
        yield Hermes(slot)
