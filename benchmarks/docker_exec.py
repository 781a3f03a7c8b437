"""The Docker engine's own exec, by its command line and by its SDK."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.container import Container, run_container
from benchmarks.contender import OUTPUT_BYTES, OUTPUT_SCRIPT, ContenderMissing


class DockerCli:
    """One `docker exec` process for each call."""

    def __init__(self, container: Container) -> None:
        self._name = str(container.container.id)

    async def noop(self) -> None:
        """Run the empty command."""
        await self._exec("true")

    async def write(self, data: bytes) -> None:
        """Write through stdin."""
        await self._exec("cat > /tmp/f", data)

    async def read(self, data: bytes) -> None:
        """Read through stdout."""
        assert await self._exec("cat /tmp/f") == data

    async def output(self) -> None:
        """Read a large output."""
        assert len(await self._exec(OUTPUT_SCRIPT)) == OUTPUT_BYTES

    async def _exec(self, script: str, data: bytes = b"") -> bytes:
        argv = ["docker", "exec", "-i", self._name, "bash", "-c", script]
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, error = await process.communicate(data)
        assert process.returncode == 0, error
        return out


class DockerSdk:
    """`exec_run` of the Docker SDK in threads; files by archives."""

    def __init__(self, container: Container) -> None:
        self._container = container

    async def noop(self) -> None:
        """Run the empty command."""
        await self._container.exec(["bash", "-c", "true"])

    async def write(self, data: bytes) -> None:
        """Upload an archive."""
        await self._container.put("/tmp", "f", data)

    async def read(self, data: bytes) -> None:
        """Download an archive."""
        assert await self._container.get("/tmp/f") == data

    async def output(self) -> None:
        """Read a large output."""
        assert len(await self._container.exec(["bash", "-c", OUTPUT_SCRIPT])) == OUTPUT_BYTES


@asynccontextmanager
async def open_cli() -> AsyncIterator[DockerCli]:
    """Yield `docker exec`.

    Raises:
        ContenderMissing: If the `docker` program or the daemon is not available.
    """
    if not shutil.which("docker"):
        raise ContenderMissing("there is no docker program")
    async with run_container() as container:
        yield DockerCli(container)


@asynccontextmanager
async def open_sdk() -> AsyncIterator[DockerSdk]:
    """Yield the SDK's exec.

    Raises:
        ContenderMissing: If the daemon is not available.
    """
    async with run_container() as container:
        yield DockerSdk(container)
