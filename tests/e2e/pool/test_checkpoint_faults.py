"""Checkpoints, restores and forks that are given up at each moment, and calls that end during them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, get_args

import anyio
import docker
import pytest

from hermes_exec import Checkpoint, SandboxPool, Slot, SlotClosed
from hermes_exec.slot.checkpoint import ProcessPolicy
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
Image = Callable[[str], str]
MANY = "mkdir many; for i in $(seq 2500); do echo $i > many/$i; done"
COUNT = "n=0; while :; do n=$((n + 1)); echo $n > next; mv next count; done"
GOES_ON = "until [ -s count ]; do :; done; n=$(cat count); until [ $(cat count) != $n ]; do :; done"
STEPS = 24


@pytest.fixture
async def pool(anyio_backend: str, docker_image: Image) -> AsyncIterator[SandboxPool]:
    image = docker_image("debian")
    options: dict[str, Any] = {"max_sandboxes": 1, "slots_per_sandbox": 4, "slot_root": "own", "lease_s": 3.0}
    async with SandboxPool("docker", image=image, **options) as made:
        yield made


async def give_up_at_each_moment(work: Callable[[], Awaitable[object]], then: Callable[[], Awaitable[object]]) -> None:
    """Cancel `work` at moments from its begin to its end, and call `then` after each."""
    began = anyio.current_time()
    await work()
    lasts_s = anyio.current_time() - began
    await then()
    for step in range(STEPS):
        with anyio.move_on_after(1.2 * lasts_s * step / STEPS):
            await work()
        await then()


async def no_layers_are_left(pool: SandboxPool) -> None:
    await until(lambda: pool.stats().checkpoints == 0)
    await until(lambda: not any(map(any, pool.stats().layers.values())), 20)


@pytest.mark.parametrize("large", [False, True], ids=["copy", "freeze"])
async def test_checkpoint_that_is_given_up_changes_nothing(pool: SandboxPool, large: bool) -> None:
    async with pool.slot() as slot:
        await slot.run(f"echo kept > note; {MANY if large else 'true'}", check=True)

        async def hold() -> None:
            await (await slot.checkpoint()).drop()

        async def check() -> None:
            shown = await slot.run("cat note; ls many 2>/dev/null | wc -l", check=True)
            assert shown.stdout == f"kept\n{2500 if large else 0}\n"

        await give_up_at_each_moment(hold, check)
    await no_layers_are_left(pool)
    assert pool.stats().slots_quarantined == 0


async def test_processes_go_on_after_a_checkpoint_that_is_given_up(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        await slot.run(MANY, check=True)
        processes = [await slot.spawn(COUNT, cwd=f"/tmp/{number}") for number in await make_directories(slot, 5)]

        async def hold() -> None:
            await (await slot.checkpoint()).drop()

        async def check() -> None:
            for number in range(len(processes)):
                await slot.run(f"cd /tmp/{number}; {GOES_ON}", check=True, timeout_s=30)

        await give_up_at_each_moment(hold, check)
        assert [process.exit_code for process in processes] == [None] * 5
    await no_layers_are_left(pool)


async def make_directories(slot: Slot, count: int) -> range:
    await slot.run(f"cd /tmp; mkdir $(seq 0 {count - 1})", check=True)
    return range(count)


async def test_restores_and_forks_that_are_given_up_leave_clean_slots(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        await slot.run(f"echo kept > note; {MANY}", check=True)
        checkpoint = await slot.checkpoint()

        async def fork() -> None:
            async with pool.slots(3, from_=checkpoint) as forks:
                assert (await forks[0].run("cat note")).stdout == "kept\n"

        async def others_are_empty() -> None:
            async with pool.slots(3) as others:
                assert [(await other.run("ls -A")).stdout for other in others] == [""] * 3

        async def restore() -> None:
            await slot.run("echo other > other; mv other note; touch later")  # it may be ended after any of them
            await slot.restore(checkpoint)

        async def slot_is_whole() -> None:
            shown = await slot.run("cat note; ls later 2>/dev/null; ls many | wc -l")
            assert shown.stdout in ("kept\n2500\n", "other\n2500\n", "other\nlater\n2500\n")

        await give_up_at_each_moment(fork, others_are_empty)
        await give_up_at_each_moment(restore, slot_is_whole)
        await checkpoint.drop()
    await no_layers_are_left(pool)
    assert pool.stats().slots_quarantined == 0


async def test_restore_ends_a_command_under_way(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        await slot.run("echo kept > note", check=True)
        checkpoint = await slot.checkpoint()
        ended: list[str] = []

        async def run(call: Callable[[], Awaitable[object]]) -> None:
            try:
                await call()
            except SlotClosed as error:
                ended.append(str(error))

        session = slot.session()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, partial(slot.run, "touch begun; sleep 100"))
            tasks.start_soon(run, partial(session.run, "touch begun2; sleep 100"))
            while not (await slot.files.exists("begun") and await slot.files.exists("begun2")):  # noqa: ASYNC110
                await anyio.sleep(0.01)
            await slot.restore(checkpoint)
        assert ended == ["the slot was restored to a checkpoint"] * 2
        assert (await slot.run("ls")).stdout == "note\n"
        assert await slot.processes() == []


async def test_checkpoints_at_the_same_time_are_equal(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        await slot.run(f"echo kept > note; {MANY}", check=True)
        await slot.spawn("sleep 1000")
        made: list[Checkpoint] = []

        async def hold() -> None:
            made.append(await slot.checkpoint())

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(hold)
        for checkpoint in made:
            async with pool.slot(from_=checkpoint) as fork:
                assert (await fork.run("cat note; ls many | wc -l")).stdout == "kept\n2500\n"
            await checkpoint.drop()
    await no_layers_are_left(pool)


async def test_kill_reaches_a_process_that_a_checkpoint_has_stopped(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        await slot.run(f"{MANY}; head -c 100000000 /dev/zero > big", check=True)
        process = await slot.spawn(COUNT)
        other = await slot.spawn(COUNT, cwd="/tmp")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slot.checkpoint)
            await anyio.sleep(0.03)
            with anyio.fail_after(30):
                await process.kill()
                await process.wait()
        await slot.run(f"cd /tmp; {GOES_ON}", check=True, timeout_s=30)
        assert other.exit_code is None


@contextmanager
def image_with_user_and_volume(base: str) -> Iterator[str]:
    """Build an image with a user of its own and a volume with a file."""
    name = f"hermes-exec-test/{uuid.uuid4().hex[:12]}:1"
    client = docker.from_env()
    container = client.containers.create(
        base, ["sh", "-c", "mkdir -p /data/d && echo given > /data/d/file; chown -R 12 /data"]
    )
    try:
        container.start()
        assert container.wait()["StatusCode"] == 0
        repository, tag = name.split(":")
        container.commit(repository, tag, changes=["USER 12", "VOLUME /data", "WORKDIR /data", 'CMD ["sh"]'])
        yield name
    finally:
        container.remove(force=True)
        with suppress(docker.errors.ImageNotFound):
            client.images.remove(name, force=True)
        client.close()


@asynccontextmanager
async def pool_of_derived_image(base: str) -> AsyncIterator[SandboxPool]:
    with image_with_user_and_volume(base) as image:
        options: dict[str, Any] = {"max_sandboxes": 1, "slots_per_sandbox": 3, "slot_root": "own", "workdir": "image"}
        async with SandboxPool("docker", image=image, **options) as pool:
            yield pool


async def test_image_with_a_user_and_a_volume(docker_image: Image) -> None:
    show = "id -u; pwd; cat d/file own; stat -c %u:%a d own"
    async with pool_of_derived_image(docker_image("debian")) as pool, pool.slot() as slot:
        await slot.run("echo mine > d/file; echo own > own; chmod 600 own; mkfifo d/pipe", check=True)
        expected = "12\n/data\nmine\nown\n12:755\n12:600\n"
        assert (await slot.run(show)).stdout == expected
        for processes in get_args(ProcessPolicy)[::2]:
            checkpoint = await slot.checkpoint(processes=processes)
            await slot.run("rm -r d own", check=True)
            await slot.restore(checkpoint)
            async with pool.slot(from_=checkpoint) as fork:
                for each in (slot, fork):
                    assert (await each.run(show)).stdout == expected
                assert (await fork.run("echo no > /etc/passwd")).exit_code != 0
            await checkpoint.drop()
        async with pool.slot() as other:
            assert (await other.run("cat d/file; ls")).stdout == "given\nd\n"
