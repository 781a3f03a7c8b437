"""Memory runs out in a container: for a command, a slot, the whole box. It is told as what it is, and mended."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import pytest

from hermes_exec import Died, ErrorCause, PoolEvent, SandboxDied, SandboxPool

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
Image = Callable[[str], str]
HOG = "tail -c 200m /dev/zero"
RUNNER_FIRST = (
    "for each in /proc/[0-9]*/oom_score_adj; do echo 0 > $each; done 2>/dev/null; "
    f"echo 1000 > /proc/1/oom_score_adj; {HOG}"
)
"""As root in a box of one's own: let the kernel choose the runner."""
FILL = f"dd if=/dev/zero of=/dev/shm/x bs=1M count=60; {HOG}"
"""What lies in shared memory is freed by no kill: the slot's own init goes, or the runner."""


async def test_a_command_that_takes_too_much_is_a_result(docker_image: Image) -> None:
    async with (
        SandboxPool("docker", image=docker_image("busybox"), limits={"memory_mb": 48}) as pool,
        pool.slot() as slot,
    ):
        result = await slot.run(["tail", "-c", "200m", "/dev/zero"], timeout_s=60)
        assert (result.oom_killed, result.exit_code, result.signal) == (True, 137, 9)
        assert (await slot.run("echo on")).stdout == "on\n"


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


@pytest.mark.parametrize(("slots", "suspect"), [(1, "tenant"), (4, "unknown")])
async def test_memory_that_no_kill_frees(docker_image: Image, slots: int, suspect: str) -> None:
    image = docker_image("busybox")
    async with SandboxPool(
        "docker", image=image, limits={"memory_mb": 48}, slots_per_sandbox=slots, max_sandboxes=1
    ) as pool:
        began = time.monotonic()
        async with pool.slot() as slot:
            oom, told = False, ""
            try:
                result = await slot.run(FILL, timeout_s=60)
                # A whole box may be given another agent in place of the one that the kernel took.
                oom, told = result.oom_killed and result.signal == 9, "tenant"
            except SandboxDied as error:
                if error.post_mortem is not None:
                    oom, told = error.post_mortem.oom, error.post_mortem.suspect
            assert (oom, told) == (True, suspect)
        async with pool.slot(timeout_s=30) as slot:
            assert (await slot.run("ls -A /dev/shm; echo clean")).stdout == "clean\n"
        assert time.monotonic() - began < 50
