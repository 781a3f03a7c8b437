"""A Docker daemon of the test's own, in a network namespace of its own, is stopped and started under a command."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import docker
import pytest

from hermes_exec import SandboxDied, SandboxPool

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.docker,
    # The SDK leaves the socket of a refused connection to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]
COUNT = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo $i; echo $i >> ran; sleep 0.1; done"


class Daemon:
    """A dockerd with its own data, socket and bridge."""

    def __init__(self, root: Path, *options: str) -> None:
        self.root = root
        self.url = f"unix://{root}/s"
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None

    def looking(self) -> contextlib.closing[docker.DockerClient]:
        """A client of the test's own, to look from outside."""
        return contextlib.closing(docker.DockerClient(base_url=self.url, version="1.41", timeout=30))

    def start(self) -> None:
        """Start it, and wait until it answers."""
        places = [f"--{what}-root={self.root}/{what}" for what in ("data", "exec")]
        command = ["unshare", "--net", "dockerd", *places, f"--pidfile={self.root}/pid", f"--host={self.url}"]
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen([*command, *self.options], stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while True:
            try:
                with self.looking() as client:
                    client.ping()
                return
            except (docker.errors.DockerException, OSError):
                assert self.process.poll() is None, (self.root / "log").read_text()[-2000:]
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def stop(self) -> None:
        """Stop it as a service manager does, and wait for its end."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture
def daemon(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, docker_image: Callable[[str], str]
) -> Iterator[Daemon]:
    if os.geteuid() or not (shutil.which("dockerd") and shutil.which("unshare")):
        pytest.skip("a second Docker daemon needs root, dockerd and unshare on this machine")
    tag = docker_image("busybox")
    own = Daemon(tmp_path_factory.mktemp("d"), *request.param)
    own.start()
    try:
        with contextlib.closing(docker.from_env()) as theirs, own.looking() as ours:
            ours.images.load(b"".join(theirs.images.get(tag).save(named=tag)))
        yield own
    finally:
        own.stop()
        subprocess.run(["umount", "-R", f"{own.root}/data"], capture_output=True, check=False)
        shutil.rmtree(own.root, ignore_errors=True)
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()


@pytest.mark.parametrize("daemon", [("--live-restore",)], indirect=True, ids=["live-restore"])
@pytest.mark.parametrize("delivery", ["bind", "upload"], ids=["past the daemon", "carried by the daemon"])
async def test_a_command_outlives_a_restart_of_the_daemon(
    daemon: Daemon, delivery: str, docker_image: Callable[[str], str]
) -> None:
    options: dict[str, Any] = {"base_url": daemon.url, "network": False, "runner_delivery": delivery}
    async with SandboxPool("docker", image=docker_image("busybox"), **options) as pool, pool.slot() as slot:
        seen: list[bytes] = []
        begun = anyio.Event()

        def look(_stream: str, data: bytes) -> None:
            seen.append(data)
            begun.set()

        async def restart() -> None:
            await begun.wait()
            await anyio.to_thread.run_sync(daemon.stop)
            await anyio.to_thread.run_sync(daemon.start)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(restart)
            result = await slot.run(COUNT, timeout_s=60, on_output=look)
        numbers = [str(n).encode() for n in range(1, 61)]
        assert result.ok
        assert result.stdout_bytes.split() == numbers
        assert b"".join(seen).split() == numbers
        assert (await slot.files.read_bytes("ran")).split() == numbers
        assert pool.stats().launches == 1


@pytest.mark.parametrize("daemon", [()], indirect=True, ids=["plain"])
async def test_a_daemon_that_takes_its_containers_along(daemon: Daemon, docker_image: Callable[[str], str]) -> None:
    image = docker_image("busybox")
    async with SandboxPool("docker", image=image, base_url=daemon.url, network=False) as pool:
        async with pool.slot() as slot:
            process = await slot.spawn("echo up; sleep 60")
            assert await process.stdout.receive() == b"up\n"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.to_thread.run_sync, daemon.stop)
                with pytest.raises(SandboxDied) as caught:
                    await slot.run("sleep 60")
            assert caught.value.post_mortem is not None
            assert caught.value.post_mortem.suspect != "tenant"
            await anyio.to_thread.run_sync(daemon.start)
            with pytest.raises(SandboxDied):
                await slot.run("true")
        async with pool.slot() as slot:
            assert (await slot.run("echo again")).stdout == "again\n"
    with daemon.looking() as client:
        assert client.containers.list(all=True) == []
