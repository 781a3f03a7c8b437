"""An engine that takes requests and answers none: nothing waits for it longer than it was told to."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import docker
import pytest

from hermes_exec import SandboxPool
from hermes_exec.backends.base import LaunchSpec, Sandbox
from hermes_exec.backends.owner import own_labels
from hermes_exec.errors import BackendUnavailable
from tests.e2e.backends.sandboxes import backend
from tests.e2e.backends.silent_engine import SilentEngine
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
SHUTDOWN_S = 2.0
LAUNCHING = ["GET .*/images/", "POST .*/containers/create", "POST .*/start", "GET .*/containers/.*/json"]
LATE_S = 25.0
"""What the end of a pool may take besides: its last resort of five seconds, and a busy machine."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SilentEngine]:
    with SilentEngine(tmp_path) as made:
        yield made


@pytest.fixture
def run_id() -> Iterator[str]:
    made = f"test-{uuid.uuid4().hex[:8]}"
    yield made
    with contextlib.closing(docker.from_env()) as client:
        for container in client.containers.list(
            all=True, filters={"label": f"hermes-exec.run-id={made}"}, ignore_removed=True
        ):
            # Another pool of this host may be removing it just now: its driver is gone.
            with contextlib.suppress(docker.errors.APIError):
                container.remove(force=True, v=True)


def containers(run_id: str) -> int:
    with contextlib.closing(docker.from_env()) as client:
        return len(client.api.containers(all=True, filters={"label": f"hermes-exec.run-id={run_id}"}))


def pool_of(engine: SilentEngine, image: str, run_id: str, shutdown_s: float = SHUTDOWN_S) -> SandboxPool:
    return SandboxPool(
        "docker", image=image, base_url=engine.base_url, run_id=run_id, shutdown_timeout_s=shutdown_s, max_sandboxes=2
    )


async def cancelled_when_silent(engine: SilentEngine, call: Callable[[], Awaitable[object]]) -> None:
    """A call is cancelled once the engine does not answer."""
    async with anyio.create_task_group() as tasks:

        async def cancel() -> None:
            await until(lambda: engine.swallowed)
            tasks.cancel_scope.cancel()

        tasks.start_soon(cancel)
        await call()
        raise AssertionError("it was answered")


@contextlib.asynccontextmanager
async def at_most(seconds: float) -> AsyncIterator[None]:
    """Longer than this the block must not take; measured, for a thread that is waited for heeds no cancel."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@pytest.mark.loops
@pytest.mark.parametrize("shutdown_s", [0.01, SHUTDOWN_S])
async def test_the_end_of_a_pool_whose_sandboxes_cannot_be_removed(
    shutdown_s: float, engine: SilentEngine, docker_image: Callable[[str], str], run_id: str
) -> None:
    async with pool_of(engine, docker_image("busybox"), run_id, shutdown_s) as pool:
        async with pool.slots(2) as slots:
            for slot in slots:
                assert (await slot.run(["true"])).exit_code == 0
        engine.be_silent("DELETE")
        began = time.monotonic()
    assert shutdown_s * 0.9 < time.monotonic() - began < shutdown_s + LATE_S
    assert engine.swallowed
    assert containers(run_id) > 0


async def test_the_end_of_a_pool_that_looks_for_orphans(
    engine: SilentEngine, docker_image: Callable[[str], str], run_id: str
) -> None:
    engine.be_silent("GET .*/containers/json")
    async with pool_of(engine, docker_image("busybox"), run_id) as pool:
        async with pool.slot() as slot:
            assert (await slot.run(["true"])).exit_code == 0
        began = time.monotonic()
    assert time.monotonic() - began < SHUTDOWN_S + LATE_S
    assert engine.swallowed
    assert containers(run_id) == 0


@pytest.mark.loops
@pytest.mark.parametrize("request_line", LAUNCHING)
async def test_the_end_of_a_pool_that_launches(
    request_line: str, engine: SilentEngine, docker_image: Callable[[str], str], run_id: str
) -> None:
    async with pool_of(engine, docker_image("busybox"), run_id) as pool:
        engine.be_silent(request_line)
        await cancelled_when_silent(engine, pool.acquire)
        began = time.monotonic()
    assert time.monotonic() - began < SHUTDOWN_S + LATE_S
    assert engine.swallowed
    engine.cut_the_silent()
    await until(lambda: containers(run_id) == 0)
    await until(lambda: not engine.is_used())


@pytest.mark.parametrize("request_line", ["GET /version", "GET .*/_ping"])
async def test_a_pool_cannot_be_entered(
    request_line: str, engine: SilentEngine, docker_image: Callable[[str], str], run_id: str
) -> None:
    engine.be_silent(request_line)
    for patience_s in (1.0, 5.0, 20.0):  # on a busy machine it may be over before the request is sent
        pool = pool_of(engine, docker_image("busybox"), run_id)
        async with at_most(patience_s + LATE_S):
            with anyio.move_on_after(patience_s), pytest.raises(BackendUnavailable):  # whichever clock is first
                await pool.__aenter__()
        if engine.swallowed:
            break
    assert engine.swallowed
    engine.cut_the_silent()
    await until(lambda: not engine.is_used())


@contextlib.asynccontextmanager
async def sandbox_of(engine: SilentEngine, image: str, run_id: str) -> AsyncIterator[Sandbox]:
    made = backend(base_url=engine.base_url)
    yield await made.launch(LaunchSpec(image=image), own_labels(run_id))
    await made.aclose()


async def test_a_cancelled_caller_of_destroy_waits_for_it(
    engine: SilentEngine, docker_image: Callable[[str], str], run_id: str
) -> None:
    async with sandbox_of(engine, docker_image("busybox"), run_id) as sandbox:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await sandbox.destroy()
        assert containers(run_id) == 0


async def test_a_deadline_holds_for_destroy(
    engine: SilentEngine, docker_image: Callable[[str], str], run_id: str
) -> None:
    async with sandbox_of(engine, docker_image("busybox"), run_id) as sandbox:
        engine.be_silent("DELETE")
        async with at_most(1 + LATE_S):
            with anyio.move_on_after(1), pytest.raises(BackendUnavailable, match="in time"):
                await sandbox.destroy()


PROGRAM = """
import sys
from hermes_exec import SandboxPool
base_url, image, run_id, how = sys.argv[1:]
pool = SandboxPool("docker", image=image, base_url=base_url, run_id=run_id, shutdown_timeout_s=2, api_timeout_s=90,
                   slots_per_sandbox=1, max_sandboxes=4)
if how == "with":
    with pool as entered:
        slots = [entered.acquire() for _ in range(4)]
        print("ready", flush=True)
        input()
else:
    entered = pool.__enter__()
    slots = [entered.acquire() for _ in range(4)]
    print("ready", flush=True)
    input()
"""


@pytest.mark.parametrize("how", ["with", "unclosed"])
def test_a_program_ends(how: str, engine: SilentEngine, docker_image: Callable[[str], str], run_id: str) -> None:
    command = [sys.executable, "-c", PROGRAM, engine.base_url, docker_image("busybox"), run_id, how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        engine.be_silent("DELETE")
        began = time.monotonic()
        program.stdin.close()
        program.wait(120)
        assert time.monotonic() - began < 45
    assert program.returncode in {0, 1}  # input() found its end


LAUNCHER = """
import sys
import anyio
from hermes_exec import SandboxPool

async def main(base_url, image, run_id):
    async with SandboxPool("docker", image=image, base_url=base_url, run_id=run_id, shutdown_timeout_s=0.5) as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.acquire)
            await anyio.to_thread.run_sync(input)
            tasks.cancel_scope.cancel()
    print("left", flush=True)

anyio.run(main, *sys.argv[2:], backend=sys.argv[1])
"""


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_a_program_does_not_end_before_what_it_launches_is_undone(
    library: str, engine: SilentEngine, docker_image: Callable[[str], str], run_id: str
) -> None:
    engine.be_silent("POST .*/start")
    command = [sys.executable, "-c", LAUNCHER, library, engine.base_url, docker_image("busybox"), run_id]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        anyio.run(until, lambda: engine.swallowed)
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "left\n"
        assert containers(run_id) == 1
        engine.cut_the_silent()
        program.wait(60)
    assert (program.returncode, containers(run_id)) == (0, 0)


async def test_an_engine_that_takes_no_connections(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as full:
        full.bind(str(tmp_path / "full.sock"))
        full.listen(0)
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(str(tmp_path / "full.sock"))
            pool = SandboxPool("docker", image="x", base_url=f"unix://{tmp_path}/full.sock", api_timeout_s=1)
            async with at_most(LATE_S):
                with pytest.raises(BackendUnavailable):
                    await pool.__aenter__()
