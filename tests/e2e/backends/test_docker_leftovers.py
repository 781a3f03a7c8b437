"""What containers leave that their engine cannot remove: a daemon with few descriptors stands for deeper trees."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from docker import DockerClient

from hermes_exec import SandboxPool
from hermes_exec.backends.base import LaunchSpec, ReapFilter
from hermes_exec.backends.owner import own_labels, to_strings
from tests.chaos.daemon import Daemon, own_daemon, possible
from tests.e2e.backends.sandboxes import backend

LEVELS = 3000
"""More than the daemon of these tests may have descriptors."""
NEST = "p=$(printf 'd/%.0s' $(seq 1500)); mkdir -p $p e/$p && mv e $p"
PROGRAM = (sys.executable, "-m", "hermes_exec.cli.main")
GONE = replace(own_labels("gone"), pid_start=1)
"""Labels of a driver that has ended."""
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.docker,
    pytest.mark.skipif(not possible(), reason="a second Docker daemon needs root, dockerd and unshare on this machine"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with own_daemon() as made:
        yield made


@pytest.fixture
def engine(daemon: Daemon) -> Iterator[DockerClient]:
    with daemon.looking() as client:
        yield client


def nest(directory: Path) -> None:
    """Make more levels in a directory than the daemon can remove."""
    fd = os.open(directory, os.O_RDONLY)
    for _ in range(LEVELS):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


def everything(engine: DockerClient) -> tuple[list[Any], list[Any]]:
    """All containers and volumes; there is one image, that of the tests."""
    assert len(engine.api.images(all=True)) == 1
    return engine.api.containers(all=True), engine.api.volumes()["Volumes"] or []


@contextlib.contextmanager
def watch_wipes(engine: DockerClient) -> Iterator[list[str]]:
    """The names of containers that are made to wipe something meanwhile, known after the block."""
    names: list[str] = []
    events = engine.api.events(decode=True, filters={"event": "create", "type": "container"})

    def read() -> None:
        for event in events:
            name = event["Actor"]["Attributes"]["name"]
            if name == "hermes-exec-end":
                return
            names.extend([name] * name.startswith("hermes-exec-wipe-"))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield names
    finally:
        image = engine.api.images()[0]["Id"]
        engine.api.remove_container(engine.api.create_container(image, "true", name="hermes-exec-end"))
        thread.join()
        events.close()


@pytest.mark.whole
@pytest.mark.parametrize("slots", [1, 2])
async def test_close_removes_trees_of_any_depth(daemon: Daemon, engine: DockerClient, slots: int) -> None:
    with watch_wipes(engine) as wipes:
        async with SandboxPool(
            "docker", image=daemon.image, base_url=daemon.url, slots_per_sandbox=slots, max_sandboxes=1
        ) as pool:
            for place in ("/tmp", "$HOME"):
                async with pool.slot() as slot:
                    assert (await slot.run(f"cd {place} && {NEST}", timeout_s=60)).ok
    assert everything(engine) == ([], [])
    assert wipes == []  # the runner did it itself


@pytest.mark.whole
async def test_trees_of_killed_runners_are_wiped_once(daemon: Daemon, engine: DockerClient) -> None:
    killed = backend(base_url=daemon.url)
    try:
        sandbox = await killed.launch(LaunchSpec(image=daemon.image, exclusive=True), GONE)
        await anyio.to_thread.run_sync(engine.api.kill, sandbox.id)
        facts = engine.api.inspect_container(sandbox.id)
        nest(Path(facts["GraphDriver"]["Data"]["UpperDir"]))
        nest(Path(next(mount["Source"] for mount in facts["Mounts"] if mount["Type"] == "volume")))
        (reaped,) = await killed.reap(ReapFilter(orphans=True))
        assert reaped.sandbox == sandbox.id
        assert everything(engine) == ([], [])
    finally:
        await killed.aclose()


@pytest.fixture
def stubborn(engine: DockerClient) -> Iterator[str]:
    """A volume of a driver that has ended, which is too deep for the daemon, with a file that nobody can remove."""
    volume = engine.api.create_volume(labels=to_strings(GONE))
    nest(Path(volume["Mountpoint"]))
    kept = Path(volume["Mountpoint"]) / "kept"
    kept.touch()
    subprocess.run(["chattr", "+i", kept], check=True)
    try:
        yield str(volume["Name"])
    finally:
        subprocess.run(["chattr", "-i", kept], check=False, capture_output=True)


@pytest.mark.whole
async def test_a_removal_that_fails_is_reported_and_not_tried_again(
    daemon: Daemon, engine: DockerClient, stubborn: str, caplog: pytest.LogCaptureFixture
) -> None:
    with watch_wipes(engine) as wipes:
        for driver in (backend(base_url=daemon.url), backend(base_url=daemon.url)):
            assert await driver.reap(ReapFilter(orphans=True)) == []
            await driver.aclose()
    assert wipes == [f"hermes-exec-wipe-volume-{stubborn}"]
    assert caplog.text.count(f"cannot remove the volume {stubborn[:24]}") == 1
    for command in (("ps",), ("doctor",)):
        told = await _command(*command, "-b", "docker", "-o", f"base_url={daemon.url}")
        assert f"docker cannot remove the volume {stubborn[:24]}; `hermes-exec reap --orphans -b docker` tries" in told
        assert "kept: operation not permitted" in told
    kept = Path(engine.api.inspect_volume(stubborn)["Mountpoint"]) / "kept"
    await anyio.run_process(["chattr", "-i", str(kept)])
    await _command("reap", "--orphans", "-b", "docker", "-o", f"base_url={daemon.url}")
    assert everything(engine) == ([], [])


async def _command(*words: str) -> str:
    done = await anyio.run_process([*PROGRAM, *words], check=False, env={**os.environ, "COLUMNS": "400"})
    return " ".join((done.stdout + done.stderr).decode().split())
