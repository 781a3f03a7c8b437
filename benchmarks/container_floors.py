"""The floors inside a container, without a channel into it: programs in the container start others and measure them."""

from __future__ import annotations

import json
import platform
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from benchmarks.container import Container, run_container
from benchmarks.contender import NOOP, ContenderMissing
from hatch_build import FLAGS, RunnerBuildError, Target, find_go, go_environment

SOURCE = Path(__file__).resolve().parent / "floor"


class InSandboxFloor:
    """A program inside a container. Its arguments are seconds, calls at once and a command; it prints all times."""

    def __init__(self, container: Container, program: list[str], *, blocking: bool = False) -> None:
        self._container = container
        self._program = program
        self.blocking = blocking

    async def time_noops(self, seconds: float, at_once: int) -> tuple[list[float], float]:
        """Let the program in the container measure itself."""
        answer = json.loads(await self._container.exec([*self._program, str(seconds), str(at_once), *NOOP]))
        return [time / 1e9 for time in answer["times_ns"]], answer["elapsed_ns"] / 1e9


@asynccontextmanager
async def _open_python(way: str, blocking: bool) -> AsyncIterator[InSandboxFloor]:
    async with run_container() as container:
        await container.put("/", "floor.py", (SOURCE / "floor.py").read_bytes())
        yield InSandboxFloor(container, ["python3", "/floor.py", way], blocking=blocking)


def open_subprocess() -> AbstractAsyncContextManager[InSandboxFloor]:
    """Yield `subprocess.run` of the container's Python.

    Raises:
        ContenderMissing: If Docker is not available.
    """
    return _open_python("run", blocking=True)


def open_resting() -> AbstractAsyncContextManager[InSandboxFloor]:
    """Yield `subprocess.run` with a short rest between two calls, as with calls from outside.

    Raises:
        ContenderMissing: If Docker is not available.
    """
    return _open_python("rested", blocking=True)


def open_asyncio() -> AbstractAsyncContextManager[InSandboxFloor]:
    """Yield asyncio's subprocesses of the container's Python.

    Raises:
        ContenderMissing: If Docker is not available.
    """
    return _open_python("asyncio", blocking=False)


@asynccontextmanager
async def open_go() -> AsyncIterator[InSandboxFloor]:
    """Yield a loop of fork and exec in Go, the strictest floor.

    Raises:
        ContenderMissing: If the Go toolchain or Docker is not available.
    """
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "floor"
        try:
            build = [find_go(), "build", *FLAGS, "-o", str(program), "."]
        except RunnerBuildError as error:
            raise ContenderMissing(str(error)) from error
        subprocess.run(build, cwd=SOURCE, env=go_environment(Target("linux", arch)), check=True)
        async with run_container() as container:
            await container.put("/", "floor", program.read_bytes(), 0o755)
            yield InSandboxFloor(container, ["/floor"])
