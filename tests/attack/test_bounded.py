"""What a tenant makes large is not read whole: runner and agent stay small, and a call takes no longer."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hermes_exec import SandboxPool, Slot
from tests.attack.arena import DIRECTORY, PROGRAMS
from tests.attack.own_programs import our_programs, peak_mib, status

pytestmark = [pytest.mark.anyio]
MIB, GIB = 1 << 20, 1 << 30
MOST_MIB = 64
"""What runner and agent may have at most, each. They have 7 to 15 when nothing is wrong."""
WAYS: dict[str, dict[str, Any]] = {
    "local": {"backend": "local"},
    "own root": {"backend": "docker", "slots_per_sandbox": 2},
    "whole sandbox": {"backend": "docker", "slots_per_sandbox": 1},
    "uid": {"backend": "docker", "slots_per_sandbox": 2, "slot_root": "shared"},
}


@asynccontextmanager
async def within_bounds(slot: Slot) -> AsyncIterator[None]:
    """Check that agent and runner have stayed small; the kernel remembers their largest size."""
    pids = await our_programs(slot)
    yield
    peaks = {pid: peak_mib(pid) for pid in pids}
    assert max(peaks.values()) < MOST_MIB, peaks


@pytest.fixture(params=[pytest.param(way, marks=[pytest.mark.docker] if way != "local" else []) for way in WAYS])
async def slot(
    request: pytest.FixtureRequest, docker_image: Callable[[str], str], anyio_backend: str
) -> AsyncIterator[Slot]:
    options = dict(WAYS[request.param])
    if options["backend"] == "docker":
        options["image"] = docker_image("debian")
    async with SandboxPool(options.pop("backend"), **options) as pool, pool.slot() as slot:
        await slot.files.upload(PROGRAMS, DIRECTORY)
        yield slot


def forged(slot: Slot, what: str, size: int, *more: str) -> list[str]:
    return ["python3", "-B", f"{slot.workspace}/{DIRECTORY}/forged.py", what, str(size), *more]


DEEP = """
import os
for _ in range(int({levels})):
    os.mkdir("d" * 250)
    os.chdir("d" * 250)
"""
IGNORED = """
import os
for level in range(4):
    for name in (".gitignore", ".ignore"):
        with open(name, "w") as file:
            file.writelines(f"?{number:x}a\\n" for number in range(150_000))
    with open("found", "w") as file:
        file.write("needle")
    os.mkdir("sub")
    os.chdir("sub")
"""


async def test_removal_of_a_tree_of_3500_levels(slot: Slot) -> None:
    async with within_bounds(slot):
        made = await slot.run(
            ["python3", "-c", f"import os; os.mkdir('top'); os.chdir('top'){DEEP.format(levels=3500)}"]
        )
        assert made.stderr == ""
        await slot.files.remove("top", recursive=True)
    assert not await slot.files.exists("top")


async def test_search_below_ignore_files_of_a_mebibyte(slot: Slot) -> None:
    await slot.files.mkdir("project")
    await slot.run(["python3", "-c", IGNORED], cwd="project")
    async with within_bounds(slot):
        begin = time.monotonic()
        result = await slot.files.search("needle", "project")
        assert time.monotonic() - begin < 2
    assert result.total == 4
    assert (
        [error for error in result.errors if "some of its rules are not applied" in error] == list(result.errors) != []
    )


REFUSED = r"belongs to|a link of /proc|symbolic links|No such file|Permission denied: |Read-only"
FLIP = "while :; do ln -sfn /proc/meminfo x; ln -sfn /proc/self/maps x; ln -sfn /proc/self/fd/0 x; done"


async def test_files_of_our_own_processes_are_not_opened(slot: Slot) -> None:
    numbers = [status(pid)["NSpid"].split()[-1] for pid in await our_programs(slot)]
    await slot.run(["ln", "-s", "/proc/self", "link"])
    for path in ["/proc/self", "/proc/thread-self", "link", *(f"/proc/{number}" for number in numbers)]:
        for name in ("maps", "mem", "environ", "status", "fd/0", "exe", "root/etc/passwd", "cwd/."):
            with pytest.raises(OSError, match=REFUSED):
                await slot.files.read_bytes(f"{path}/{name}")
        with pytest.raises(OSError, match=REFUSED):
            await slot.files.list(f"{path}/fd")
        with pytest.raises(OSError, match=REFUSED):
            await slot.files.write_text(f"{path}/comm", "x")
    with pytest.raises(OSError, match=REFUSED):
        await slot.files.list("/dev/fd")


async def test_files_of_own_processes_are_opened(slot: Slot) -> None:
    process = await slot.spawn(["sleep", "60"])
    assert b"MemTotal" in await slot.files.read_bytes("/proc/meminfo")
    assert b"sleep" in await slot.files.read_bytes(f"/proc/{process.pid}/status")
    assert b"sleep" in await slot.files.read_bytes(f"/proc/{process.pid}/maps")
    await process.kill()


async def test_link_that_changes_meanwhile_leads_to_none_of_our_own(slot: Slot) -> None:
    process = await slot.spawn(["sh", "-c", FLIP])
    read, refused = 0, 0
    for _ in range(300):
        try:
            assert (await slot.files.read_bytes("x")).startswith(b"MemTotal")
            read += 1
        except OSError:
            refused += 1
    await process.kill()
    assert read
    assert refused


async def test_process_list_with_a_command_line_of_a_gibibyte(slot: Slot) -> None:
    async with within_bounds(slot):
        process = await slot.spawn(forged(slot, "argv", GIB))
        assert await process.stdout.receive() == b"forged\n"
        begin = time.monotonic()
        listed = await slot.processes()
        assert time.monotonic() - begin < 2
        (seen,) = (each for each in listed if each.pid == process.pid)
        assert sum(len(arg) + 1 for arg in seen.argv) == 64 << 10
        await process.kill()


async def test_time_limit_beside_a_daemon_with_an_environment_of_300_mebibytes(slot: Slot) -> None:
    async with within_bounds(slot):
        command = forged(slot, "environ", 300 * MIB, "daemon")
        result = await slot.run(["sh", "-c", '"$@"; sleep 60', "sh", *command], timeout_s=2)
        assert result.timed_out
        assert result.duration_s < 6
        assert not any("forged.py" in " ".join(each.argv) for each in await slot.processes())
