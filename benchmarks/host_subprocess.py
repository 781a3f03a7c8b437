"""The floors on the host: starting a program with Python's standard library."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.contender import NOOP, OUTPUT_BYTES, OUTPUT_SCRIPT, Unsupported


class Subprocess:
    """`subprocess.run`, which blocks: one call after the other."""

    blocking = True

    async def noop(self) -> None:
        """Run the empty command and block until it has ended."""
        subprocess.run(NOOP, check=True)

    async def write(self, data: bytes) -> None:
        """Raise Unsupported: this contender has no files."""
        raise Unsupported

    async def read(self, data: bytes) -> None:
        """Raise Unsupported: this contender has no files."""
        raise Unsupported

    async def output(self) -> None:
        """Raise Unsupported: this contender captures no output."""
        raise Unsupported


class CapturingSubprocess(Subprocess):
    """`subprocess.run` with captured output, which a tool call needs."""

    async def noop(self) -> None:
        """Run the empty command and block until it has ended."""
        subprocess.run(NOOP, check=True, capture_output=True)

    async def output(self) -> None:
        """Read a large output through pipes."""
        completed = subprocess.run(["bash", "-c", OUTPUT_SCRIPT], check=True, capture_output=True)
        assert len(completed.stdout) == OUTPUT_BYTES


class AsyncioSubprocess(Subprocess):
    """asyncio's subprocesses."""

    blocking = False

    async def noop(self) -> None:
        """Run the empty command."""
        await self._run("true")

    async def output(self) -> None:
        """Read a large output through pipes."""
        assert len(await self._run(OUTPUT_SCRIPT)) == OUTPUT_BYTES

    async def _run(self, script: str) -> bytes:
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", script, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, _ = await process.communicate()
        assert process.returncode == 0
        return out


@asynccontextmanager
async def open_subprocess() -> AsyncIterator[Subprocess]:
    """Yield `subprocess.run`."""
    yield Subprocess()


@asynccontextmanager
async def open_capturing() -> AsyncIterator[CapturingSubprocess]:
    """Yield `subprocess.run` with `capture_output`."""
    yield CapturingSubprocess()


@asynccontextmanager
async def open_asyncio() -> AsyncIterator[AsyncioSubprocess]:
    """Yield asyncio's subprocesses."""
    yield AsyncioSubprocess()
