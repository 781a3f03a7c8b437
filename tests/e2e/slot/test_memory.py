"""Memory runs out in a container: for a command, a slot, the whole sandbox. It is reported as such, and the slot works
again.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from hermes_exec import Died, ErrorCause, PoolEvent, RunResult, SandboxDied, SandboxPool, Slot

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.alone]
"""Alone: how many processes the kernel ends for want of memory depends on how busy it is."""
Image = Callable[[str], str]
HOG = "tail -c 200m /dev/zero"
RUNNER_FIRST = (
    "for each in /proc/[0-9]*/oom_score_adj; do echo 0 > $each; done 2>/dev/null; "
    f"echo 1000 > /proc/1/oom_score_adj; {HOG}"
)
"""As root in a sandbox of one's own: let the kernel choose the runner."""
FILL = f"dd if=/dev/zero of=/dev/shm/x bs=1M count=60; {HOG}"
"""What lies in shared memory is freed by no kill."""


async def test_a_command_that_takes_too_much_is_a_result(docker_image: Image) -> None:
    async with (
        SandboxPool("docker", image=docker_image("busybox"), limits={"memory_mb": 48}) as pool,
        pool.slot() as slot,
    ):
        result = await slot.run(["tail", "-c", "200m", "/dev/zero"], timeout_s=60)
        assert (result.oom_killed, result.exit_code, result.signal) == (True, 137, 9)
        assert (await slot.run("echo on")).stdout == "on\n"


WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "own sandbox": ("docker", {"limits": {"memory_mb": 48}}),
    "shared sandbox": ("docker", {"limits": {"memory_mb": 48}, "slots_per_sandbox": 2}),
    "own cgroup": ("local", {"slot_limits": {"memory_mb": 48}}),
}
"""Where the count of such ends is that of the sandbox, the sandbox of several slots, the slot."""


@pytest.fixture(params=WAYS)
async def short_slot(request: pytest.FixtureRequest, docker_image: Image, anyio_backend: str) -> AsyncIterator[Slot]:
    backend, options = WAYS[request.param]
    if backend == "local" and os.geteuid():
        pytest.skip("a limit of memory on local needs cgroups, which root makes")
    image = docker_image("busybox") if backend == "docker" else None
    async with SandboxPool(backend, image=image, **options) as pool, pool.slot() as slot:
        yield slot


TEXT_HOG = "sh -c 'x=$(head -c 200000000 /dev/zero | tr \"\\0\" x); echo $x'"
"""Takes too much on every system, where `tail` may know better."""


async def test_a_part_of_a_pipeline_that_takes_too_much_is_told(short_slot: Slot) -> None:
    """Its other parts decide the exit code. A command that runs meanwhile has lost nothing."""
    slot = short_slot
    neighbour = await slot.spawn("read line; echo $line", stdin=True)
    assert neighbour.stdin is not None
    for run in (slot.run, slot.session().run):
        result = await run(f"{TEXT_HOG} | wc -c", timeout_s=60)
        for _ in range(4):
            assert result.oom_killed
            if result.signal is not None:  # now and then the kernel ends the shell as well
                result = await run(f"{TEXT_HOG} | wc -c", timeout_s=60)
        assert (result.exit_code, result.signal) == (0, None)
    await neighbour.stdin.send(b"done\n")
    assert not (await neighbour.wait(60)).oom_killed
    for command in ("true", "sh -c 'kill -9 $$'", "sh -c 'kill -9 $$' | cat"):
        assert not (await slot.run(command)).oom_killed


async def test_what_was_left_running_takes_too_much_and_no_other_command_is_blamed(short_slot: Slot) -> None:
    slot = short_slot

    async def beside() -> RunResult:
        left = await slot.run(f"rm -f go; mkfifo go; (read line < go; exec {TEXT_HOG}) > /dev/null 2>&1 & echo $!")
        pid = left.stdout.strip()
        return await slot.run(f"echo now > go; while kill -0 {pid} 2>/dev/null; do :; done", timeout_s=60)

    meanwhile = await beside()
    for _ in range(4):
        if meanwhile.signal is not None:  # now and then the kernel ends the other command as well
            assert meanwhile.oom_killed
            meanwhile = await beside()
    assert (meanwhile.exit_code, meanwhile.oom_killed) == (0, False)
    assert not (await slot.run("true")).oom_killed


async def test_a_part_that_takes_too_much_is_told_without_half_of_the_memory(docker_image: Image) -> None:
    """Nobody else runs, so that the count alone says it: what fills the memory is in a file of it."""
    image = docker_image("busybox")
    async with SandboxPool("docker", image=image, limits={"memory_mb": 48}) as pool, pool.slot() as slot:
        await slot.run("dd if=/dev/zero of=/dev/shm/x bs=1M count=34", check=True)
        result = await slot.run("tail -c 20m /dev/zero | cat > /dev/null; echo $?", timeout_s=60)
        assert (result.oom_killed, result.stdout) == (True, "0\n")
        assert not (await slot.run("true")).oom_killed


async def test_a_tenant_has_the_kernel_end_the_runner(docker_image: Image) -> None:
    options = {"limits": {"memory_mb": 48}, "max_sandboxes": 1}
    async with SandboxPool("docker", image=docker_image("busybox"), **options) as pool:  # type: ignore[arg-type]
        events: list[PoolEvent] = []
        heard = pool.events()

        async def listen() -> None:
            events.extend([event async for event in heard])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            began = time.monotonic()
            async with pool.slot() as slot:
                first = slot.sandbox
                for command in (RUNNER_FIRST, "true"):
                    with pytest.raises(SandboxDied) as caught:
                        await slot.run(command, timeout_s=60)
                    death = caught.value.post_mortem
                    assert death is not None
                    assert (death.oom, death.exit_code, death.suspect) == (True, 137, "tenant")
                    assert "out of memory" in str(caught.value)
                    assert (caught.value.sandbox, caught.value.cause) == (first, ErrorCause.POLICY)
            async with pool.slot(timeout_s=30) as slot:
                assert slot.sandbox != first
                assert (await slot.run("echo replaced")).stdout == "replaced\n"
            assert time.monotonic() - began < 50
            await heard.aclose()
    (died,) = [event for event in events if isinstance(event, Died)]
    assert died.post_mortem is not None
    assert died.post_mortem.oom


@pytest.mark.parametrize("slots", [1, 4])
async def test_memory_that_no_kill_frees(docker_image: Image, slots: int) -> None:
    """The command goes, and nothing else of the slot."""
    image = docker_image("busybox")
    async with SandboxPool(
        "docker", image=image, limits={"memory_mb": 48}, slots_per_sandbox=slots, max_sandboxes=1
    ) as pool:
        began = time.monotonic()
        async with pool.slot() as slot:
            result = await slot.run(FILL, timeout_s=60)
            assert (result.oom_killed, result.exit_code, result.signal) == (True, 137, 9)
            assert (await slot.run("ls /dev/shm")).stdout == "x\n"
        async with pool.slot(timeout_s=30) as slot:
            assert (await slot.run("ls -A /dev/shm; echo clean")).stdout == "clean\n"
        assert time.monotonic() - began < 50


@pytest.mark.parametrize(("slots", "suspect"), [(1, "tenant"), (4, "unknown")])
async def test_a_tenant_has_the_kernel_end_the_init_of_its_slot(docker_image: Image, slots: int, suspect: str) -> None:
    """Commands are to be chosen first, but may say that they are not."""
    image = docker_image("busybox")
    async with SandboxPool(
        "docker", image=image, limits={"memory_mb": 48}, slots_per_sandbox=slots, max_sandboxes=1
    ) as pool:
        async with pool.slot() as slot:
            with pytest.raises(SandboxDied) as caught:
                await slot.run(f"echo 0 > /proc/self/oom_score_adj; {FILL}", timeout_s=60)
            assert caught.value.post_mortem is not None
            assert (caught.value.post_mortem.oom, caught.value.post_mortem.suspect) == (True, suspect)
        async with pool.slot(timeout_s=30) as slot:
            assert (await slot.run("ls -A /dev/shm; echo clean")).stdout == "clean\n"
