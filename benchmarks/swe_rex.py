"""SWE-ReX: its own server in a container and its own client on this host, over HTTP, as intended."""

from __future__ import annotations

import platform
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import anyio.to_thread

from benchmarks.container import run_container
from benchmarks.contender import OUTPUT_BYTES, OUTPUT_SCRIPT, ContenderMissing

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "bench"
PORT = 8000
FILE = "/tmp/f"


class SweRex:
    """One-shot commands and files of SWE-ReX's remote runtime."""

    def __init__(self, runtime: Any) -> None:  # noqa: ANN401 - swe-rex has no types
        self._runtime = runtime

    async def noop(self) -> None:
        """Run the empty command."""
        await self._execute("true")

    async def write(self, data: bytes) -> None:
        """Write a text file."""
        from swerex.runtime.abstract import WriteFileRequest

        await self._runtime.write_file(WriteFileRequest(path=FILE, content=data.decode()))

    async def read(self, data: bytes) -> None:
        """Read a text file."""
        from swerex.runtime.abstract import ReadFileRequest

        assert (await self._runtime.read_file(ReadFileRequest(path=FILE))).content.encode() == data

    async def output(self) -> None:
        """Read a large output."""
        assert len(await self._execute(OUTPUT_SCRIPT)) == OUTPUT_BYTES

    async def _execute(self, script: str) -> str:
        from swerex.runtime.abstract import Command

        completed = await self._runtime.execute(Command(command=["bash", "-c", script], timeout=60))
        assert completed.exit_code == 0, completed
        return str(completed.stdout)


def install_server(python_version: str) -> Path:
    """Install SWE-ReX and its dependencies once into a directory that a container can import from.

    Raises:
        ContenderMissing: If swe-rex is not installed here, or the index does not have its wheels.
    """
    try:
        release = version("swe-rex")
    except PackageNotFoundError as error:
        raise ContenderMissing("swe-rex is not installed (extra bench)") from error
    directory = CACHE / f"swe-rex-{release}-{python_version}-{platform.machine()}"
    if not (directory / "swerex").is_dir():
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--target",
            str(directory),
            "--python-version",
            python_version,
        ]
        completed = subprocess.run(
            [*pip, "--only-binary=:all:", f"swe-rex=={release}", "aiohttp"], capture_output=True, text=True, check=False
        )
        if completed.returncode != 0:
            raise ContenderMissing(f"the server of swe-rex cannot be installed: {completed.stderr.strip()[-200:]}")
    return directory


@asynccontextmanager
async def open_swe_rex() -> AsyncIterator[SweRex]:
    """Yield SWE-ReX's remote runtime with its server in a container, through a port on loopback.

    Raises:
        ContenderMissing: If swe-rex or Docker is not available.
    """
    async with run_container() as probe:
        python_version = await probe.exec(["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    directory = await anyio.to_thread.run_sync(install_server, python_version.decode().strip())
    token = secrets.token_hex(16)
    command = ["python3", "-m", "swerex.server", "--port", str(PORT), "--auth-token", token]
    environment = ["env", "PYTHONPATH=/swe-rex", "PYTHONDONTWRITEBYTECODE=1"]
    publish = {f"{PORT}/tcp": ("127.0.0.1", None)}
    async with run_container([*environment, *command], publish, [f"{directory}:/swe-rex:ro"]) as container:
        from swerex.runtime.remote import RemoteRuntime

        await container.call(container.container.reload)
        bound = container.container.ports[f"{PORT}/tcp"]
        assert bound, "the port of the server is not published"
        port = int(bound[0]["HostPort"])
        runtime = RemoteRuntime(host="http://127.0.0.1", port=port, auth_token=token)
        await runtime.wait_until_alive(timeout=60)
        yield SweRex(runtime)
