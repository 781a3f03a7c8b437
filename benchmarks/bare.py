"""The floors: starting a program on the host with Python's own means, and inside a container without any channel."""

from __future__ import annotations

import asyncio
import json
import platform
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.container import Container, running
from benchmarks.contender import OUTPUT_BYTES, OUTPUT_SCRIPT, ContenderMissing, SelfTimed, Unsupported
from hatch_build import FLAGS, RunnerBuildError, Target, find_go, go_environment

NOOP = ["bash", "-c", "true"]


class Subprocess:
    """`subprocess.run`, which blocks: one after the other."""

    blocking = True

    async def noop(self) -> None:
        """Run the empty command and block until it has ended."""
        subprocess.run(NOOP, check=True, capture_output=True)

    async def write(self, data: bytes) -> None:
        """Files are out of its scope."""
        raise Unsupported

    async def read(self, data: bytes) -> None:
        """Files are out of its scope."""
        raise Unsupported

    async def output(self) -> None:
        """Take much output through pipes."""
        done = subprocess.run(["bash", "-c", OUTPUT_SCRIPT], check=True, capture_output=True)
        assert len(done.stdout) == OUTPUT_BYTES


class AsyncioSubprocess(Subprocess):
    """asyncio's subprocesses."""

    blocking = False

    async def noop(self) -> None:
        """Run the empty command."""
        await self._run("true")

    async def output(self) -> None:
        """Take much output through pipes."""
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
async def open_asyncio() -> AsyncIterator[AsyncioSubprocess]:
    """Yield asyncio's subprocesses."""
    yield AsyncioSubprocess()


class InBoxFloor:
    """A loop of fork and exec inside a container: what no channel into it can beat."""

    def __init__(self, container: Container) -> None:
        self._container = container

    async def timed_noops(self, seconds: float, at_once: int) -> tuple[list[float], float]:
        """Let the program in the container measure itself."""
        answer = json.loads(await self._container.exec(["/floor", str(seconds), str(at_once), *NOOP]))
        return [time / 1e9 for time in answer["times_ns"]], answer["elapsed_ns"] / 1e9


@asynccontextmanager
async def open_floor() -> AsyncIterator[SelfTimed]:
    """Yield the floor inside a fresh container.

    Raises:
        ContenderMissing: no Go toolchain, or no Docker.
    """
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "floor"
        try:
            build = [find_go(), "build", *FLAGS, "-o", str(program), "."]
        except RunnerBuildError as error:
            raise ContenderMissing(str(error)) from error
        source = Path(__file__).resolve().parent / "floor"
        subprocess.run(build, cwd=source, env=go_environment(Target("linux", arch)), check=True)
        async with running() as container:
            await container.put("/", "floor", program.read_bytes(), 0o755)
            yield InBoxFloor(container)
