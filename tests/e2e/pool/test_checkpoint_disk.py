"""Checkpoints on a disk without room or without inodes: an error that changes nothing, and a way out."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from hermes_exec import SandboxPool, Slot
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
Image = Callable[[str], str]
STATE = "/hermes-exec/state/base"
COUNTER = [
    "python3",
    "-c",
    """
import os
file, number = os.open("count", os.O_RDWR), 0
while True:
    number += 1
    os.pwrite(file, b"%9d" % number, 0)
""",
]
"""Changes a file in place, which takes no room."""


@asynccontextmanager
async def small_sandbox(image: str, options: str) -> AsyncIterator[tuple[SandboxPool, Slot]]:
    """Acquire a slot of a sandbox whose slots and layers share a small disk."""
    tmpfs = {STATE: f"{options},mode=711"}
    pool = SandboxPool("docker", image=image, max_sandboxes=1, slots_per_sandbox=2, slot_root="own", tmpfs=tmpfs)
    async with pool, pool.slot() as slot:
        await slot.run("echo 123456789 > count; echo kept > note; touch first", check=True)
        await slot.spawn(COUNTER)
        yield pool, slot


async def goes_on(slot: Slot) -> bool:
    """Return whether the counter continues."""
    before = await slot.run("cat count", check=True)
    await anyio.sleep(0.05)
    return (await slot.run("cat count", check=True)).stdout != before.stdout


async def list_layers(pool: SandboxPool) -> list[str]:
    """Return the layers that are in the store of the pool's sandbox."""
    (sandbox,) = pool._life.running.fleet.sandboxes.values()  # type: ignore[union-attr]
    base = sandbox.channel.facts.raw["base_dir"]
    listing = await anyio.run_process(["docker", "exec", sandbox.id, "ls", f"{base}/layers"])
    return listing.stdout.decode().split()


async def test_copy_without_room_changes_nothing(docker_image: Image) -> None:
    async with small_sandbox(docker_image("debian"), "size=64m") as (pool, slot):
        early = await slot.checkpoint()
        layers = await list_layers(pool)
        await slot.run("head -c 40000000 /dev/urandom > big; sha256sum big > sum; mkdir d; touch d/x", check=True)
        with pytest.raises(OSError, match=r"[Nn]o space left") as caught:
            await slot.checkpoint()
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.filename, "the error names a file"
        assert await list_layers(pool) == layers, "a part of the copy is left"
        assert await goes_on(slot)
        assert (await slot.run("sha256sum -c sum; cat note; ls d")).stdout == "big: OK\nkept\nx\n"
        ended = await slot.checkpoint(processes="end")  # needs no room
        assert (await slot.run("sha256sum -c sum")).stdout == "big: OK\n"
        async with pool.slot(from_=ended) as fork:
            assert (await fork.run("sha256sum -c sum")).stdout == "big: OK\n"
        await slot.restore(early)
        assert (await slot.run("ls")).stdout == "count\nfirst\nnote\n"
        await ended.drop()
        await slot.run("head -c 40000000 /dev/urandom > again", check=True)
        await early.drop()
        await slot.reset()
        await until(lambda: pool.stats().checkpoints == 0)
        assert await list_layers(pool) == []


@pytest.mark.parametrize("processes", ["keep", "end"])
async def test_checkpoint_without_inodes_changes_nothing(docker_image: Image, processes: str) -> None:
    async with small_sandbox(docker_image("debian"), "size=64m,nr_inodes=3000") as (pool, slot):
        early = await slot.checkpoint()
        layers = await list_layers(pool)
        await slot.run("i=0; while : > f$i; do i=$((i + 1)); done 2>/dev/null; echo later > note")
        with pytest.raises(OSError, match=r"[Nn]o space left") as caught:
            await slot.checkpoint(processes=processes)  # type: ignore[arg-type]
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.filename, "the error names a file"
        assert await list_layers(pool) == layers, "a part of the layer is left"
        assert await goes_on(slot), "a process ended for a checkpoint that was not made"
        await slot.restore(early)
        assert (await slot.run("cat note; ls | wc -l")).stdout == "kept\n3\n"
        async with pool.slot(from_=early) as fork:
            assert (await fork.run("cat note")).stdout == "kept\n"
        await early.drop()
        await slot.checkpoint(processes="end")


async def test_freeze_with_few_inodes_is_made_or_changes_nothing(docker_image: Image) -> None:
    refusals: list[int | None] = []
    for left in (2, 5, 12, 40, 400):
        async with small_sandbox(docker_image("debian"), "size=64m,nr_inodes=3000") as (_, slot):
            early = await slot.checkpoint()
            await slot.run("i=0; while : > f$i; do i=$((i + 1)); done 2>/dev/null")
            await slot.run(f"rm -f $(seq -f f%g 0 {left})", check=True)
            count = (await slot.run("ls | wc -l", check=True)).stdout
            try:
                await slot.checkpoint(processes="end")
            except OSError as error:
                refusals.append(error.errno)
                assert await goes_on(slot), "a process ended for a checkpoint that was not made"
            assert (await slot.run("ls | wc -l")).stdout == count
            await slot.restore(early)
            assert (await slot.run("cat note")).stdout == "kept\n"
    assert 0 < len(refusals) < 5
    assert set(refusals) == {errno.ENOSPC}
