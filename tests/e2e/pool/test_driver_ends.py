"""A driver that is ended in the middle of a command: nothing goes on without it, long before the lease is over."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import docker
import pytest
from anyio import to_thread

from hermes_exec import SandboxPool
from hermes_exec.backends.base import Labels, ReapFilter
from hermes_exec.backends.owner import own_labels, to_strings
from hermes_exec.backends.registry import make_backend
from tests.support.outside import count_becomes, ends, mark, runner_pid
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).resolve().parents[3]
SIGNALS = [signal.SIGTERM, signal.SIGKILL]
LEASE_S = 3600
WITH_DRIVER = 2
"""The driver has the word among its arguments too."""
SO_PEERPIDFD = 77


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A driver, which is killed in the end."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def driver(
    backend: str, image: str, word: str, *, lease_s: float
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    run_id = f"test-{uuid.uuid4().hex[:8]}"
    return started([sys.executable, "-m", "tests.e2e.pool.unclosed", "run", backend, image, run_id, word, str(lease_s)])


def tells_of_ends() -> bool:
    """Whether a socket of this kernel tells of the end of the process behind it, also in another pid namespace."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            ours.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        except OSError:
            return False
    return True


@pytest.mark.parametrize("number", SIGNALS)
async def test_nothing_goes_on_without_its_driver(number: signal.Signals) -> None:
    word = mark()
    with driver("local", "", word, lease_s=LEASE_S) as process:
        assert process.stdout is not None
        name = (await to_thread.run_sync(process.stdout.readline)).strip()
        await count_becomes(word, WITH_DRIVER)
        process.send_signal(number)
        await count_becomes(word, 0)
        await ends(runner_pid(name))
    backend = make_backend("local", {})
    await backend.reap(ReapFilter(orphans=True))
    assert name not in {info.sandbox for info in await backend.sandboxes()}


@pytest.mark.alone
@pytest.mark.docker
@pytest.mark.parametrize("number", SIGNALS)
async def test_no_container_goes_on_without_its_driver(
    number: signal.Signals, docker_image: Callable[[str], str]
) -> None:
    word = mark()
    lease_s = LEASE_S if tells_of_ends() else 6
    with (
        contextlib.closing(docker.from_env()) as client,
        driver("docker", docker_image("busybox"), word, lease_s=lease_s) as process,
    ):
        assert process.stdout is not None
        name = (await to_thread.run_sync(process.stdout.readline)).strip()
        container = client.containers.get(name)
        try:
            await count_becomes(word, WITH_DRIVER)
            process.send_signal(number)
            await count_becomes(word, 0)
            with anyio.fail_after(60):
                ended = await to_thread.run_sync(container.wait)
            assert ended["StatusCode"] == 0
        finally:
            container.remove(force=True, v=True)


@pytest.mark.docker
async def test_a_pool_that_ends_at_once_has_reaped_what_there_was(docker_image: Callable[[str], str]) -> None:
    mine = own_labels(f"test-{uuid.uuid4().hex[:8]}")
    gone = Labels(mine.run_id, mine.host_id, mine.boot_id, mine.pid_namespace, mine.pid, mine.pid_start + 1)
    image = docker_image("busybox")
    with contextlib.closing(docker.from_env()) as client:
        for _ in range(30):
            client.api.create_container(image, labels=to_strings(gone))
        async with SandboxPool("docker", image=image):
            pass
        # Some of them another pool of this host may be removing just now.
        left = {"label": f"hermes-exec.run-id={gone.run_id}"}
        await until(lambda: client.api.containers(all=True, filters=left) == [], 20)


@pytest.mark.docker
async def test_a_living_sandbox_of_a_cloned_host_is_no_orphan(docker_image: Callable[[str], str]) -> None:
    """A VM that was cloned has the name and machine id of the other one, which uses the same engine."""
    cloned = replace(own_labels(f"test-{uuid.uuid4().hex[:8]}"), boot_id="of the other VM")
    image = docker_image("busybox")
    with contextlib.closing(docker.from_env()) as client:
        alive, ended = (
            client.containers.run(image, command, labels=to_strings(cloned), detach=True, network_mode="none")
            for command in (["sleep", "100"], ["true"])
        )
        try:
            await to_thread.run_sync(ended.wait)
            async with SandboxPool("docker", image=image):
                pass
            left = {"label": f"hermes-exec.run-id={cloned.run_id}"}
            await until(
                lambda: [found["Id"] for found in client.api.containers(all=True, filters=left)] == [alive.id], 20
            )
        finally:
            alive.remove(force=True)


STOPPED = """
import os, signal, sys
from hermes_exec import SandboxDied, SandboxPool
with SandboxPool(sys.argv[1], **eval(sys.argv[2]), lease_s=2) as pool, pool.slot() as slot:
    print(slot.sandbox, flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        slot.run("true")
    except SandboxDied as error:
        print(error, flush=True)
"""


@pytest.mark.parametrize("backend", ["local", pytest.param("ssh", marks=pytest.mark.ssh)])
async def test_sandbox_of_a_stopped_driver_is_lost_with_the_drivers_silence_as_reason(
    backend: str, request: pytest.FixtureRequest
) -> None:
    options = request.getfixturevalue("ssh_server").options() if backend == "ssh" else {}
    with started([sys.executable, "-c", STOPPED, backend, repr(options)]) as process:
        assert process.stdout is not None
        name = (await to_thread.run_sync(process.stdout.readline)).strip()
        await anyio.sleep(8)  # how long the driver is stopped is the case
        process.send_signal(signal.SIGCONT)
        message = (await to_thread.run_sync(process.stdout.readline)).strip()
    assert message.startswith(f"the sandbox {name} died: ")
    silence_s = int(message.partition("; this driver was silent for ")[2].partition(" s, longer than lease_s=2")[0])
    assert 5 <= silence_s < 60
