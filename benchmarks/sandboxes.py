"""The start of sandboxes, many at once and a single one, until their first command has ended, compared with the bare
Docker SDK.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from benchmarks.container import LABELS, ensure_image
from benchmarks.contender import NOOP, ContenderMissing
from benchmarks.measurements import Discipline, Measurements, Sample, progress
from benchmarks.options import Options
from hermes_exec import SandboxPool
from hermes_exec.pool.decisions import PlanConfig
from hermes_exec.slot.slot import Slot

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

OURS, OURS_OPEN, BARE = "hermes-exec, Docker", "hermes-exec, Docker, pool open already", "docker SDK"
SLOTS = "hermes-exec, Docker, slots of one sandbox"
FIRST = "one sandbox, from nothing to its first command"
AT_ONCE = PlanConfig(max_sandboxes=1, templates={}).launches_at_once
MANY_ROUNDS = 3


async def measure(options: Options) -> Measurements:
    """Open sandboxes in rounds: this library and the bare SDK in turn."""
    measurements = Measurements()
    many = Discipline(
        f"{options.sandboxes} sandboxes, each with its first command", "times", {OURS: BARE, SLOTS: BARE, BARE: BARE}
    )
    first = Discipline(FIRST, "times", {OURS: BARE, OURS_OPEN: BARE, BARE: BARE})
    try:
        name = await to_thread.run_sync(ensure_image)
    except ContenderMissing as error:
        measurements.leave_out("sandboxes from nothing", error)
        return measurements
    measurements.disciplines += [first, many]
    for number in range(2 * options.rounds + 1):
        progress(f"{first.name}: round {number} of {2 * options.rounds}")
        for contender, duration_s in (await time_first_sandboxes(name)).items():
            (first.sample(contender) if number else Sample()).add_one(duration_s)
    rounds = min(MANY_ROUNDS, options.rounds)
    for number in range(1, rounds + 1):
        progress(f"{many.name}: round {number} of {rounds}")
        many.sample(OURS).add_one(await time_our_sandboxes(name, options.sandboxes))
        many.sample(SLOTS).add_one(await time_our_slots(name, options.sandboxes))
        many.sample(BARE).add_one(await to_thread.run_sync(time_bare_sandboxes, name, options.sandboxes))
    return measurements


async def time_first_sandboxes(name: str) -> dict[str, float]:
    """Return the seconds that one sandbox takes, by contender."""
    durations_s = {}
    begin = time.perf_counter()
    async with SandboxPool("docker", image=name, network=False) as pool, pool.slot() as slot:
        await run(slot)
        durations_s[OURS] = time.perf_counter() - begin
        begin = time.perf_counter()
        async with pool.slot() as second:
            await run(second)
            durations_s[OURS_OPEN] = time.perf_counter() - begin
    durations_s[BARE] = await to_thread.run_sync(time_bare_sandboxes, name, 1)
    return durations_s


async def time_our_sandboxes(name: str, count: int) -> float:
    """Return the seconds from an open pool until each of many sandboxes has run a command."""
    async with SandboxPool("docker", image=name, network=False, max_sandboxes=count) as pool:
        begin = time.perf_counter()

        async def acquire_and_run() -> None:
            await run(await pool.acquire())

        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(acquire_and_run)
        return time.perf_counter() - begin


async def time_our_slots(name: str, count: int) -> float:
    """Return the seconds until each of many slots of one sandbox, each with its own root, has run a command."""
    async with SandboxPool(
        "docker", image=name, network=False, max_sandboxes=1, slots_per_sandbox=count, slot_root="own"
    ) as pool:
        begin = time.perf_counter()
        async with pool.slots(count) as slots:
            async with anyio.create_task_group() as tasks:
                for slot in slots:
                    tasks.start_soon(run, slot)
            return time.perf_counter() - begin


async def run(slot: Slot) -> None:
    """Run the first command."""
    result = await slot.run(NOOP)
    assert result.ok, result


def time_bare_sandboxes(name: str, count: int) -> float:
    """Return the seconds of the Docker SDK for create, start and exec, as many at once as the pool launches."""
    import docker

    begin = time.perf_counter()
    client = docker.from_env(timeout=120, max_pool_size=AT_ONCE + 4)
    with ExitStack() as stack:
        stack.callback(client.close)
        containers: list[Container] = []
        stack.callback(remove, containers)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(lambda _: start_bare_sandbox(client, name, containers), range(count)))
        return time.perf_counter() - begin


def start_bare_sandbox(client: DockerClient, name: str, containers: list[Container]) -> None:
    """Start one container and run one command in it."""
    container = client.containers.create(name, ["sleep", "3600"], network_mode="none", labels=LABELS)
    containers.append(container)
    container.start()
    code, output = container.exec_run(NOOP)
    assert code == 0, output


def remove(containers: list[Container]) -> None:
    """Remove containers, some at a time."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda container: container.remove(force=True, v=True), containers))
