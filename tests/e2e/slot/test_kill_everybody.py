"""`kill -9 -1` by the tenant of a whole sandbox: whatever was under way or comes later says who did it, until a
reset.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest

from hermes_exec import ErrorCause, SandboxDied, SandboxPool, Slot

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
EVERYBODY = "kill -9 -1"
ROUNDS = 2


@pytest.fixture
async def slot(anyio_backend: str, docker_image: Callable[[str], str]) -> AsyncIterator[Slot]:
    image = docker_image("busybox")
    async with SandboxPool("docker", image=image, max_sandboxes=1) as pool, pool.slot() as slot:
        assert slot.isolation.level == "exclusive"
        yield slot


async def is_told(call: Awaitable[object]) -> None:
    with pytest.raises(SandboxDied) as caught:
        await call
    death = caught.value.post_mortem
    assert death is not None
    assert (death.suspect, death.oom, caught.value.cause) == ("tenant", False, ErrorCause.POLICY)


async def test_calls_that_are_under_way_are_told(slot: Slot) -> None:
    process = await slot.spawn("sleep 1000", pty=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(is_told, slot.run("sleep 1000"))
        tasks.start_soon(is_told, process.wait())
        tasks.start_soon(is_told, slot.run(f"sleep 1; {EVERYBODY}; sleep 1000"))
    for call in (slot.run("true"), slot.files.list("."), slot.processes(), slot.spawn("true"), slot.connect(1)):
        await is_told(call)


async def test_a_reset_mends_it(slot: Slot) -> None:
    for _ in range(ROUNDS):
        await slot.files.write_text("file", "left")
        await is_told(slot.run(EVERYBODY))
        sandbox = slot.sandbox
        await slot.reset()
        assert slot.sandbox != sandbox
        assert await slot.files.list(".") == []
        assert (await slot.run("ps | grep -c 'slee[p]'")).stdout == "0\n"


async def test_who_goes_on_killing_loses_the_sandbox(slot: Slot) -> None:
    await is_told(slot.run(f"while :; do {EVERYBODY}; done 2>/dev/null"))
    sandbox = slot.sandbox
    await slot.reset()
    assert slot.sandbox != sandbox
    assert (await slot.run("echo goes on")).stdout == "goes on\n"
