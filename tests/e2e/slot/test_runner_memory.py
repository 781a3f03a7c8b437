"""The runner's memory: whatever is printed, it stays within its budget, gives it back, and tells what it dropped."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from hermes_exec import ConfigError, RunnerMemory, RunResult, SandboxPool, Slot
from tests.conftest import BackendCase
from tests.support.outside import runner_pid

pytestmark = pytest.mark.anyio
MIB = 1 << 20
ROOM = 64 * MIB
"""What a runner may take besides its budget."""
FLOOD = "import os; block = b'x' * 65536\nfor _ in range({}): os.write(1, block); os.write(2, block)"
BOTH = "head -c {0} /dev/zero; head -c {0} /dev/zero >&2"


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS:"))


@contextmanager
def watched(pid: int) -> Iterator[list[int]]:
    """The most that a process has resident while the block lasts, as the one item of a list."""
    most, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            most[0] = max(most[0], resident_bytes(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()


async def comes_back(pid: int, most_bytes: int) -> None:
    with anyio.fail_after(60):
        while resident_bytes(pid) > most_bytes:  # noqa: ASYNC110 - other processes set no events
            await anyio.sleep(0.2)


@pytest.fixture
async def slot(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Slot]:
    async with SandboxPool("local", slots_per_sandbox=2, **getattr(request, "param", {})) as pool, pool.slot() as slot:
        await slot.run("true")
        yield slot


def flood(mib: int) -> list[str]:
    return ["python3", "-c", FLOOD.format(mib * 16)]


SMALL: dict[str, Any] = {"runner_memory_mb": 32}


@pytest.mark.parametrize(
    ("slot", "budget_mb", "processes", "mib"),
    [(SMALL, 32, 6, 24), pytest.param({}, 256, 15, 200, marks=pytest.mark.whole)],
    indirect=["slot"],
)
async def test_logs_of_flooding_processes_stay_within_the_budget(
    slot: Slot, budget_mb: int, processes: int, mib: int
) -> None:
    pid = runner_pid(slot.sandbox)
    base = resident_bytes(pid)
    with watched(pid) as most:
        started = [
            await slot.spawn(flood(mib), output_limit_bytes=budget_mb * MIB // 4, merge_stderr=False)
            for _ in range(processes)
        ]
        for process in started:
            await process.wait(300)
    assert most[0] < budget_mb * MIB + ROOM
    await comes_back(pid, base + 16 * MIB)
    for process in started:
        assert process.stdout_bytes == process.stderr_bytes == mib * MIB
        data, following = await process.output(-1000)
        assert (len(data), following) in ((1000, mib * MIB), (0, mib * MIB))  # its file may have made room


@pytest.mark.parametrize(
    ("slot", "budget_mb"), [(SMALL, 32), pytest.param({}, 256, marks=pytest.mark.whole)], indirect=["slot"]
)
async def test_commands_that_flood_keep_less_and_tell_it(slot: Slot, budget_mb: int) -> None:
    pid = runner_pid(slot.sandbox)
    base, limit, size = resident_bytes(pid), budget_mb * MIB // 4, budget_mb * MIB // 3
    command = ["python3", "-c", FLOOD.format(size // 65536)]
    size = size // 65536 * 65536
    results = []

    async def run() -> None:
        results.append(await slot.run(command, output_limit_bytes=limit, timeout_s=120))

    with watched(pid) as most:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(run)
    assert most[0] < budget_mb * MIB + ROOM
    for result in results:
        assert result.ok
        assert result.stdout_total_bytes == result.stderr_total_bytes == size
        for kept in (result.stdout_bytes, result.stderr_bytes):
            assert MIB // 16 < len(kept) <= limit
            assert kept.count(b"x") == len(kept)
        assert result.output_dropped_bytes == 2 * size - len(result.output_bytes)
    await comes_back(pid, base + 16 * MIB)


@pytest.mark.parametrize("slots", [1, pytest.param(8, marks=pytest.mark.whole)])
async def test_processes_that_ended_are_forgotten_and_take_little(slots: int) -> None:
    count = 90 if slots == 1 else 520
    async with SandboxPool("local", slots_per_sandbox=slots) as pool, pool.slots(slots) as held:
        for slot in held:
            await slot.run("true")
        pid = runner_pid(held[0].sandbox)
        base = resident_bytes(pid)
        first = await held[0].spawn("echo first")
        await first.wait(60)
        turns = anyio.CapacityLimiter(8)

        async def one(slot: Slot, size: int) -> None:
            async with turns:
                await (await slot.spawn(BOTH.format(size))).wait(60)

        with watched(pid) as most:
            async with anyio.create_task_group() as tasks:
                for slot in held:
                    for index in range(count):
                        tasks.start_soon(one, slot, 600_000 if index % 2 else 200_000)
        assert most[0] < slots * 24 * MIB + ROOM
        for slot in held:
            known = await slot.spawned()
            assert len(known) == 64
            newest = known[-1]
            data, following = await newest.output()
            assert len(data) == following == newest.stdout_bytes
        with pytest.raises(ProcessLookupError, match="forgotten"):
            await first.output()
        with pytest.raises(ProcessLookupError, match="the last 64"):
            await first.wait()
        for slot in held:
            await slot.reset()
        await comes_back(pid, base + 16 * MIB)


@pytest.mark.parametrize("slot", [SMALL], indirect=True)
async def test_an_output_limit_above_a_quarter_of_the_budget_is_refused_before_anything_starts(slot: Slot) -> None:
    too_much = 8 * MIB + 1
    session = slot.session()
    for begin in (slot.run, slot.spawn, session.run, session.spawn):
        with pytest.raises(ConfigError, match=r"8388609 .* a quarter of the runner's 32 MiB.*runner_memory_mb"):
            await begin("touch started", output_limit_bytes=too_much)
    with pytest.raises(ConfigError, match="output_limit_bytes"):
        await slot.run_many(["touch started"], output_limit_bytes=too_much)
    assert not await slot.files.exists("started")
    assert (await slot.run("echo fits", output_limit_bytes=8 * MIB)).stdout == "fits\n"


async def test_stats_tell_the_use_of_each_runner() -> None:
    async with SandboxPool("local", runner_memory_mb=64, lease_s=1.2) as pool, pool.slot() as slot:
        (memory,) = pool.stats().runners.values()
        assert memory.limit_bytes == 64 * MIB
        process = await slot.spawn("head -c 200000 /dev/zero; read x", stdin=True)
        with anyio.fail_after(30):
            while (memory := pool.stats().runners[slot.sandbox]).used_bytes < 200_000:  # noqa: ASYNC110 - as above
                await anyio.sleep(0.05)
        assert isinstance(memory, RunnerMemory)
        assert memory.limit_bytes >= memory.peak_bytes >= memory.used_bytes
        assert memory.dropped_bytes == 0
        await process.kill()
        await slot.reset()
        with anyio.fail_after(30):
            while pool.stats().runners[slot.sandbox].used_bytes > 100_000:  # noqa: ASYNC110 - as above
                await anyio.sleep(0.05)


async def test_floods_stay_within_the_budget_on_every_backend(backend: BackendCase) -> None:
    command = "head -c 24000000 /dev/zero; head -c 24000000 /dev/zero >&2"
    async with (
        SandboxPool(backend.backend, runner_memory_mb=16, lease_s=6, **backend.options) as pool,
        pool.slot() as slot,
    ):
        results: list[RunResult] = []

        async def run() -> None:
            results.append(await slot.run(command, output_limit_bytes=4 * MIB, timeout_s=120))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(run)
        for result in results:
            assert (result.ok, result.stdout_total_bytes, result.stderr_total_bytes) == (True, 24_000_000, 24_000_000)
            assert MIB // 16 < len(result.stdout_bytes) <= 4 * MIB
        with anyio.fail_after(60):
            while (memory := pool.stats().runners[slot.sandbox]).dropped_bytes == 0:  # noqa: ASYNC110 - as above
                await anyio.sleep(0.1)
        assert memory.peak_bytes < memory.limit_bytes + 4 * MIB


@pytest.mark.docker
async def test_the_budget_is_an_eighth_of_the_sandbox(docker_image: Callable[[str], str]) -> None:
    async with (
        SandboxPool("docker", image=docker_image("busybox"), limits={"memory_mb": 256}) as pool,
        pool.slot() as slot,
    ):
        assert pool.stats().runners[slot.sandbox].limit_bytes == 32 * MIB
        with pytest.raises(ConfigError, match="of the runner's 32 MiB"):
            await slot.run("true", output_limit_bytes=9 * MIB)
