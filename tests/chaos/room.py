"""Disasters of resources: memory or disk runs out, for one slot or for the sandbox that two slots share."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from hermes_exec import SandboxPool, Slot
from tests.chaos.containers import place
from tests.chaos.flow import REPLACED, SAME
from tests.chaos.observations import Seen, Told, told, words
from tests.chaos.outside import NOTHING, left_in_docker

HOG = "sh -c 'x=$(head -c 200000000 /dev/zero | tr \"\\0\" x); echo $x'"
"""Takes 200 MB in one process."""
FILL_SHM = f"dd if=/dev/zero of=/dev/shm/x bs=1M count=60; {HOG}"
"""What lies in shared memory is freed by no kill."""
MEMORY = {"memory_mb": 48}
ROOM_MB = 24
FILL_DISK = "cat /dev/zero > full"
SANDBOX_DIR = "/hermes-exec/state/base"


class Harm(NamedTuple):
    """What one of two slots of a sandbox did, and what came of it."""

    call: Told
    then: Told
    neighbour: Told
    pool: str
    began_at: float

    def seen(self, left: str) -> Seen:
        """As a row."""
        then = self.then.text if self.then.text == self.neighbour.text else f"{self.then.text}; {self.neighbour.text}"
        return Seen(self.call.text, then, self.pool, left, self.call.at - self.began_at)


async def on(slot: Slot) -> Told:
    """The next call."""
    return await told(lambda: slot.run("echo on", timeout_s=60), "on\n")


async def write(slot: Slot) -> Told:
    """The next call where the disk is full."""
    try:
        await slot.files.write_bytes("file", bytes(10_000))
    except OSError as error:
        return Told(f"the neighbour's write: {words(error)}", time.monotonic())
    return Told("the neighbour's write is done", time.monotonic())


async def harm(options: Mapping[str, Any], command: str, neighbours: Callable[[Slot], Awaitable[Told]] = on) -> Harm:
    """One of two slots does harm; afterwards both are acquired again."""
    async with SandboxPool(**{**options, "slots_per_sandbox": 2, "max_sandboxes": 1}) as pool:
        async with pool.slots(2) as (slot, neighbour):
            sandbox = slot.sandbox
            assert (await on(neighbour)).text == "the whole result"
            began_at = time.monotonic()
            call = await told(lambda: slot.run(command, timeout_s=100), "")
            then, beside = await on(slot), await neighbours(neighbour)
        async with pool.slots(2, timeout_s=100) as slots:
            for each in slots:
                assert (await each.run("ls -A . /dev/shm | grep x; echo again")).stdout == "again\n"
                await each.files.write_bytes("file", bytes(10_000))
        return Harm(call, then, beside, SAME if slots[0].sandbox == sandbox else REPLACED, began_at)


async def memory_of_a_slot() -> Seen:
    """A tenant takes more memory than `slot_limits` gives it."""
    with small_disk() as base:
        done = await harm({"backend": "local", "base_dir": base, "slot_limits": MEMORY}, HOG)
        return done.seen(", ".join(os.listdir(base)) or NOTHING)


async def memory_of_a_sandbox() -> Seen:
    """The memory of a sandbox is full of what no kill frees."""
    with place() as here:
        done = await harm({**here.options, "limits": MEMORY}, FILL_SHM)
        return done.seen(left_in_docker(here.client, here.run_id))


@contextmanager
def small_disk() -> Iterator[str]:
    """A small file system of its own; needs root."""
    with tempfile.TemporaryDirectory() as path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM_MB}m", "none", path], check=True)
        try:
            yield path
        finally:
            subprocess.run(["umount", path], check=True)


async def disk_of_local_sandboxes() -> Seen:
    """The file system with the slots of local sandboxes is full."""
    with small_disk() as base:
        done = await harm({"backend": "local", "base_dir": base}, FILL_DISK, write)
        return done.seen(", ".join(os.listdir(base)) or NOTHING)


async def disk_of_a_sandbox() -> Seen:
    """The file system with the slots of a container is full."""
    with place() as here:
        small = {SANDBOX_DIR: f"size={ROOM_MB}m,mode=711"}
        done = await harm({**here.options, "tmpfs": small}, FILL_DISK, write)
        return done.seen(left_in_docker(here.client, here.run_id))
