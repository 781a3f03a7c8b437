"""Resident memory and descriptors of processes, as reported by the kernel of this host."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import anyio
from anyio import to_thread

from benchmarks.calls import DOCKER, LOCAL
from benchmarks.container import ensure_image
from benchmarks.contender import NOOP, ContenderMissing
from benchmarks.measurements import Figure, Measurements, progress
from benchmarks.options import Options
from hermes_exec import SandboxPool

SLOTS = 64
RUNNER, AGENT = f"runner with {SLOTS} idle slots", "agent of an idle slot (median)"
IDLE_S = 6.0
MEMORY_FIELDS = {"Rss": "resident", "Pss": "its share (PSS)"}


def memory_kb(pid: int, field: str = "Rss") -> int:
    """Return the resident memory of a process in KiB. With "Pss", each process counts its share of a shared page."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{field}:")))


def descriptors(pid: int) -> int:
    """Return the number of open file descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def children(pid: int) -> list[int]:
    """Return the children of a process, of all its threads."""
    lists = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(word) for text in lists for word in text.split()]


def runner_pid(backend: str, sandbox: str) -> int:
    """Return the id of a sandbox's serving runner, as seen on this host."""
    if backend == "local":
        return int(sandbox.removeprefix("local-"))
    import docker

    client = docker.from_env()
    try:
        return int(client.api.inspect_container(sandbox)["State"]["Pid"])
    finally:
        client.close()


async def measure(_: Options) -> Measurements:
    """Fill one sandbox of each backend with slots, let them rest, and measure their memory."""
    measurements = Measurements()
    if os.geteuid() != 0:
        measurements.leave_out("memory of the runner", "only root may look into its processes")
        return measurements
    for name, backend in ((LOCAL, "local"), (DOCKER, "docker")):
        progress(f"memory of {SLOTS} idle slots: {name}")
        try:
            runner, agents = await measure_idle_sandbox(backend)
        except ContenderMissing as error:
            measurements.leave_out(f"{name}, memory", error)
            continue
        for field, words in MEMORY_FIELDS.items():
            median = statistics.median(agent[field] for agent in agents)
            measurements.figures[f"{name}: {RUNNER}, {words}"] = Figure(runner[field] / 1024, "MiB")
            measurements.figures[f"{name}: {AGENT}, {words}"] = Figure(median / 1024, "MiB")
    return measurements


async def measure_idle_sandbox(backend: str) -> tuple[dict[str, int], list[dict[str, int]]]:
    """Return the memory in KiB of a sandbox's runner and of each slot agent, after all slots have worked and rested."""
    name = None if backend == "local" else await to_thread.run_sync(ensure_image)
    pool = SandboxPool(backend, image=name, network=name is None, max_sandboxes=1, slots_per_sandbox=SLOTS)
    async with pool, pool.slots(SLOTS) as slots:
        for slot in slots:
            assert (await slot.run(NOOP)).ok
        await anyio.sleep(IDLE_S)
        pid = await to_thread.run_sync(runner_pid, backend, slots[0].sandbox)
        each = [{field: memory_kb(process, field) for field in MEMORY_FIELDS} for process in (pid, *children(pid))]
        assert len(each) == SLOTS + 2, f"{len(each) - 1} processes for {SLOTS} slots and a spare agent"
        return each[0], each[1:]
