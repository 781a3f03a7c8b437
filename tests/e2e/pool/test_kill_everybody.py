"""`kill -9 -1` by the tenant of a whole box while calls are under way: results where they can be had, else errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from hermes_exec import RunResult, SandboxPool, Slot

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
EVERYBODY = "kill -9 -1"
ROUNDS = 12


@pytest.fixture
async def slot(anyio_backend: str, docker_image: Callable[[str], str]) -> AsyncIterator[Slot]:
    async with SandboxPool("docker", image=docker_image("busybox")) as pool, pool.slot() as slot:
        assert slot.isolation.level == "box"
        yield slot


async def test_terminals_that_start_meanwhile_are_results(slot: Slot) -> None:
    ended: list[RunResult] = []

    async def terminal() -> None:
        process = await slot.spawn("echo hi", pty=True)
        ended.append(await process.wait(60))
        with pytest.raises(ProcessLookupError):
            await process.resize(30, 90)

    for _ in range(ROUNDS):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(terminal)
            assert (await slot.run(EVERYBODY)).signal == 9
    assert len(ended) == 3 * ROUNDS
    assert {(result.exit_code, result.signal) for result in ended} <= {(0, None), (137, 9)}


async def test_what_only_looks_is_asked_again(slot: Slot) -> None:
    await slot.files.write_text("folder/file", "needle")

    async def look() -> None:
        assert (await slot.files.stat("folder")).type == "dir"
        assert await slot.files.read_text("folder/file") == "needle"
        assert [entry.name for entry in await slot.files.list("folder")] == ["file"]
        assert (await slot.files.search("needle")).total == 1
        assert await slot.files.glob("folder/*") == ["folder/file"]
        await slot.processes()
        with pytest.raises(ConnectionRefusedError):
            await slot.connect(1)

    for _ in range(ROUNDS):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(look)
            assert (await slot.run(EVERYBODY)).signal == 9


async def test_a_write_that_was_under_way_says_that_it_was_interrupted(slot: Slot) -> None:
    await slot.files.write_text("file", "before")
    params = {"path": "file", "parents": True, "append": False}
    with pytest.raises(InterruptedError, match="killed everything"):
        async with slot.scope.conversation("file.write", params, path="file") as conversation:
            await conversation.send(bytes(1 << 20))
            while len(await slot.files.list(".")) < 2:  # noqa: ASYNC110 - what is written to tells nobody
                await anyio.sleep(0.01)
            assert (await slot.run(EVERYBODY)).signal == 9
            await conversation.response()
    assert await slot.files.read_text("file") == "before"
    await slot.files.write_text("file", "after")
    assert await slot.files.read_text("file") == "after"
