"""Sandboxes that are jobs of a real Nomad agent: its exec's traps, restarts, two nodes, and what bad input is told."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import anyio
import pytest
from anyio import to_thread
from docker import DockerClient
from docker.models.containers import Container

from hermes_exec import (
    ErrorCause,
    ExecError,
    Limits,
    SandboxDied,
    SandboxPool,
    Slot,
)
from hermes_exec.backends.base import LaunchSpec, ReapFilter, Sandbox, SandboxInfo
from hermes_exec.backends.nomad.cluster import TASK
from hermes_exec.backends.owner import own_labels
from hermes_exec.backends.registry import make_backend
from hermes_exec.testing.conformance.sandboxes import break_sockets, open_sockets
from tests.e2e.backends.nomad_sandboxes import cli, config_of, together
from tests.e2e.backends.sandboxes import sandboxes_of
from tests.support.nomad_agent import Agent, agent
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.nomad]
Image = Callable[[str], str]


@pytest.fixture
def options(nomad_options: dict[str, Any]) -> dict[str, Any]:
    return nomad_options


async def found(options: dict[str, Any]) -> list[SandboxInfo]:
    return await sandboxes_of("nomad", config_of(options))


def container(engine: DockerClient, nomad: Agent, job: str) -> Container:
    """The container of a job."""
    (allocation,) = nomad.ask("GET", f"job/{job}/allocations")
    return engine.containers.get(f"{TASK}-{allocation['ID']}")


def sandbox_of(slot: Slot) -> str:
    assert slot.sandbox is not None
    return slot.sandbox


async def test_everything_is_gone_afterwards(options: dict[str, Any], nomad_agent: Agent, engine: DockerClient) -> None:
    async with SandboxPool("nomad", **options) as pool, pool.slot() as slot:
        assert (await slot.run("cat", stdin="there and back")).stdout == "there and back"
        (info,) = await found(options)
        assert (info.sandbox, info.owner, info.ended, info.image) == (
            sandbox_of(slot),
            "alive",
            False,
            options["image"],
        )
        made = container(engine, nomad_agent, sandbox_of(slot))
        assert made.top()["Processes"]
        assert "NOMAD_" not in (await slot.run("env")).stdout
    assert nomad_agent.jobs() == []
    await until(lambda: not engine.containers.list(all=True, filters={"id": str(made.id)}, ignore_removed=True))


async def test_eight_slots_share_a_sandbox(options: dict[str, Any], nomad_agent: Agent) -> None:
    async with SandboxPool("nomad", **options) as pool, pool.slots(9) as slots:
        assert len({sandbox_of(slot) for slot in slots}) == 2
        assert len(nomad_agent.jobs()) == 2
        told = await together(*(slot.run("echo $0", timeout_s=20) for slot in slots))
        assert all(result.ok for result in told)


@pytest.mark.whole
async def test_output_is_whole_where_nomads_own_exec_loses_it(options: dict[str, Any]) -> None:
    size = 3_000_000
    async with SandboxPool("nomad", **options) as pool, pool.slot() as slot:
        for _ in range(8):
            command = f"head -c {size} /dev/zero; exit 7"
            result = await slot.run(command, timeout_s=60, output_limit_bytes=2 * size)
            assert (len(result.stdout_bytes), result.exit_code) == (size, 7)


@pytest.mark.whole
async def test_streams_that_break_lose_nothing_and_leave_nothing(
    options: dict[str, Any], nomad_agent: Agent, engine: DockerClient
) -> None:
    before = open_sockets()
    async with SandboxPool("nomad", **options, max_sandboxes=1) as pool, pool.slot() as slot:
        made = container(engine, nomad_agent, sandbox_of(slot))

        async def count() -> None:
            result = await slot.run("for i in $(seq 60); do echo $i; sleep 0.1; done", timeout_s=60)
            assert result.stdout == "".join(f"{i}\n" for i in range(1, 61))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            for _ in range(6):
                await anyio.sleep(0.7)
                assert break_sockets(open_sockets() - before)

        def attached() -> list[str]:
            return [line[-1] for line in made.top()["Processes"] if " attach " in line[-1]]

        # Nobody tells a program that its stream is gone: the runner lets go of each that was replaced.
        await until(lambda: len(attached()) == 1)


async def test_many_streams_at_once(options: dict[str, Any]) -> None:
    """In one of a hundred cases Nomad says at once that a program has ended which is about to run."""
    backend = make_backend("nomad", config_of(options))
    async with SandboxPool("nomad", **options) as pool, pool.slot() as slot:
        assert pool._running is not None
        (sandbox,) = pool._running.fleet.sandboxes.values()
        assert await backend.sandboxes()
        for _ in range(4):
            await together(*(opened_and_closed(sandbox.handle) for _ in range(16)))
        assert (await slot.run("echo alive")).stdout == "alive\n"


async def opened_and_closed(sandbox: Sandbox) -> None:
    stream = await sandbox.open(["attach"])
    await stream.aclose()


async def count_slowly(slot: Slot, seen: list[str]) -> None:
    command = "for i in $(seq 60); do echo $i; sleep 0.1; done"
    seen.append((await slot.run(command, timeout_s=120)).stdout)


async def test_a_restarted_agent_loses_nothing(options: dict[str, Any], nomad_agent: Agent) -> None:
    async def wait_for_a_sandbox(pool: SandboxPool) -> None:
        async with pool.slot() as slot:
            assert (await slot.run("echo later")).stdout == "later\n"

    pool = SandboxPool("nomad", **options, lease_s=60, slots_per_sandbox=1, max_sandboxes=2)
    async with pool, pool.slot() as slot:
        seen: list[str] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count_slowly, slot, seen)
            await anyio.sleep(1)
            await to_thread.run_sync(nomad_agent.stop)
            tasks.start_soon(wait_for_a_sandbox, pool)
            await anyio.sleep(1)
            await to_thread.run_sync(nomad_agent.start)
        assert seen == ["".join(f"{i}\n" for i in range(1, 61))]
        assert (await slot.run("echo again")).stdout == "again\n"


@pytest.fixture
def second_node(nomad_agent: Agent) -> Iterator[Agent]:
    """A node of its own, which is reached by way of the server."""
    with agent(nomad_agent.server) as node:
        yield node


def only_on(node: Agent) -> dict[str, Any]:
    return {"constraints": [{"attribute": "${node.unique.name}", "value": node.name}]}


@pytest.mark.whole
@pytest.mark.slow
async def test_two_nodes(options: dict[str, Any], nomad_agent: Agent, second_node: Agent) -> None:
    profiles = {node.name: {"backend_options": only_on(node)} for node in (nomad_agent, second_node)}
    pool = SandboxPool("nomad", **options, profiles=profiles, lease_s=60)
    async with pool, pool.slot(nomad_agent.name) as here, pool.slot(second_node.name) as there:
        for slot, node in ((here, nomad_agent), (there, second_node)):
            (allocation,) = nomad_agent.ask("GET", f"job/{sandbox_of(slot)}/allocations")
            assert allocation["NodeName"] == node.name
            assert (await slot.run("echo in")).stdout == "in\n"
        seen: list[str] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count_slowly, there, seen)
            await anyio.sleep(1)
            await to_thread.run_sync(second_node.stop)
            assert (await here.run("echo on")).stdout == "on\n"
            await to_thread.run_sync(second_node.start)
        assert seen == ["".join(f"{i}\n" for i in range(1, 61))]


@pytest.mark.whole
@pytest.mark.slow
async def test_a_node_that_stays_away_is_told(options: dict[str, Any], second_node: Agent) -> None:
    async with SandboxPool("nomad", **options, **only_on(second_node), lease_s=5) as pool, pool.slot() as slot:
        second_node.stop()
        with pytest.raises(ExecError) as told, anyio.fail_after(120):
            await slot.run("sleep 100", timeout_s=110)
        assert told.value.cause == ErrorCause.INFRA
        second_node.start()


async def test_a_killed_container_is_told(options: dict[str, Any], nomad_agent: Agent, engine: DockerClient) -> None:
    async with SandboxPool("nomad", **options) as pool:
        async with pool.slot() as slot:
            container(engine, nomad_agent, sandbox_of(slot)).kill()
            with pytest.raises(SandboxDied) as died, anyio.fail_after(60):
                await slot.run("sleep 100", timeout_s=100)
            assert died.value.post_mortem is not None
            assert (died.value.post_mortem.suspect, died.value.post_mortem.exit_code) == ("outside", 137)
        async with pool.slot() as slot:
            assert (await slot.run("echo replaced")).stdout == "replaced\n"


@pytest.mark.whole
async def test_signals_from_inside_do_not_end_the_runner_in_order(options: dict[str, Any]) -> None:
    async with SandboxPool("nomad", **{**options, "slots_per_sandbox": 1}) as pool, pool.slot() as slot:
        assert slot.isolation.level == "exclusive"
        await slot.run("for i in $(seq 50); do kill 1; kill -INT 1; kill -HUP 1; done")
        assert (await slot.run("echo goes on")).stdout == "goes on\n"
        await slot.reset()
        assert (await slot.run("echo goes on")).stdout == "goes on\n"


@pytest.mark.whole
async def test_a_removed_job_is_told(options: dict[str, Any], nomad_agent: Agent) -> None:
    async with SandboxPool("nomad", **options) as pool, pool.slot() as slot:
        nomad_agent.ask("DELETE", f"job/{sandbox_of(slot)}?purge=true")
        with pytest.raises(SandboxDied, match="removed"), anyio.fail_after(60):
            await slot.run("sleep 100", timeout_s=100)


async def test_a_restarted_task_is_told(options: dict[str, Any], nomad_agent: Agent) -> None:
    async with SandboxPool("nomad", **options) as pool:
        async with pool.slot() as slot:
            (allocation,) = nomad_agent.ask("GET", f"job/{sandbox_of(slot)}/allocations")
            await slot.spawn("sleep 100")
            nomad_agent.ask("PUT", f"client/allocation/{allocation['ID']}/restart", json={})
            # Nomad tells its runner to end first: that, or what Nomad says after it, is known sooner.
            why = "asked to end|restarted|the runner ended"
            with pytest.raises(SandboxDied, match=why) as raised, anyio.fail_after(60):
                await slot.run("sleep 100", timeout_s=100)
            assert raised.value.retryable
        async with pool.slot() as another:
            assert sandbox_of(another) != sandbox_of(slot)


DRIVER = """
import sys, time
from hermes_exec import SandboxPool
with SandboxPool("nomad", **eval(sys.argv[1])) as pool, pool.slot() as slot:
    slot.spawn("sleep 1000")
    print(slot.sandbox, flush=True)
    sys.stdin.read()
    print(slot.run("echo fine").stdout, flush=True)
"""


@contextlib.asynccontextmanager
async def other_driver(options: dict[str, Any]) -> AsyncIterator[tuple[anyio.abc.Process, str]]:
    """Another process with a sandbox, and the name of that."""
    async with await anyio.open_process([sys.executable, "-c", DRIVER, repr(options)], stderr=None) as driver:
        try:
            assert driver.stdout is not None
            yield driver, (await driver.stdout.receive()).decode().strip()
        finally:
            if driver.returncode is None:
                driver.kill()


@pytest.mark.whole
async def test_a_killed_driver_leaves_nothing(options: dict[str, Any], nomad_agent: Agent) -> None:
    async with other_driver({**options, "lease_s": 4}) as (driver, sandbox):
        driver.kill()
        await driver.wait()
        await until(lambda: nomad_agent.ask("GET", f"job/{sandbox}")["Status"] == "dead")
    async with SandboxPool("nomad", **options):
        await until(lambda: nomad_agent.jobs() == [])


@pytest.mark.whole
async def test_two_drivers_do_not_disturb_each_other(options: dict[str, Any], nomad_agent: Agent) -> None:
    async with other_driver(options) as (driver, sandbox):
        for purge in (True, False):
            async with SandboxPool("nomad", **options, purge_on_start=purge) as pool, pool.slot() as slot:
                assert (await slot.run("echo mine")).stdout == "mine\n"
                assert {info.sandbox for info in await found(options)} == {sandbox_of(slot), sandbox}
                assert await make_backend("nomad", config_of(options)).reap(ReapFilter(orphans=True)) == []
        assert nomad_agent.jobs() == [sandbox]
        assert driver.stdin is not None
        assert driver.stdout is not None
        await driver.stdin.aclose()
        assert b"".join([part async for part in driver.stdout]).strip() == b"fine"
        await driver.wait()


@pytest.mark.whole
async def test_what_a_run_has_left_is_purged_when_asked(options: dict[str, Any], nomad_agent: Agent) -> None:
    """Also on a host that went with its driver; what a living one has of the same run stays."""
    backend = make_backend("nomad", config_of(options))
    elsewhere = replace(own_labels("left"), host_id="another", boot_id="another")
    spec = LaunchSpec(lease_s=600)
    left = (await backend.launch(spec, elsewhere)).id
    other = (await backend.launch(spec, replace(elsewhere, run_id="other"))).id
    async with other_driver({**options, "run_id": "left"}) as (_, living):
        for purge, stay in ((False, [left, other, living]), (True, [other, living])):
            pool = SandboxPool("nomad", **options, run_id="left", purge_on_start=purge)
            async with pool, pool.slot() as slot:
                assert sorted(nomad_agent.jobs()) == sorted([*stay, sandbox_of(slot)])
    await backend.reap(ReapFilter(all=True))


@pytest.mark.whole
async def test_who_waits_outlives_a_restart_of_the_server(options: dict[str, Any], nomad_agent: Agent) -> None:
    """One that has just started refuses everybody for a moment."""
    async with SandboxPool("nomad", **options) as pool:
        server = nomad_agent.server
        assert server is not None
        await to_thread.run_sync(server.stop)

        async def use_slot() -> None:
            async with pool.slot(timeout_s=120) as slot:
                assert (await slot.run("echo later")).stdout == "later\n"

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(use_slot)
            await anyio.sleep(2)
            await to_thread.run_sync(server.start)
            tasks.start_soon(use_slot)


@pytest.mark.whole
async def test_jobs_may_be_kept_for_inspection(options: dict[str, Any], nomad_agent: Agent) -> None:
    async with SandboxPool("nomad", **options, run_id="kept", purge_on_shutdown=False) as pool, pool.slot() as slot:
        sandbox = sandbox_of(slot)
    assert nomad_agent.jobs() == [sandbox]
    await until(lambda: nomad_agent.ask("GET", f"job/{sandbox}")["Status"] == "dead")
    (reaped,) = await make_backend("nomad", config_of(options)).reap(ReapFilter(run_id="kept"))
    assert reaped.sandbox == sandbox


@pytest.mark.whole
async def test_commands_on_sandboxes(options: dict[str, Any]) -> None:
    environ = {"NOMAD_ADDR": options["address"], "NOMAD_TOKEN": options["token"]}
    async with SandboxPool("nomad", **options, run_id="seen") as pool, pool.slot() as slot:
        run = functools.partial(
            to_thread.run_sync, functools.partial(cli, "ps", "-b", "nomad", "--json", environ=environ)
        )
        shown = json.loads((await run()).stdout)
        assert [(sandbox["sandbox"], sandbox["owner"]) for sandbox in shown] == [(sandbox_of(slot), "alive")]
        reap = functools.partial(cli, "reap", "-b", "nomad", "--orphans", "--json", environ=environ)
        assert json.loads((await to_thread.run_sync(reap)).stdout) == []
        assert (await slot.run("echo untouched")).stdout == "untouched\n"


async def test_limits(options: dict[str, Any], nomad_agent: Agent, engine: DockerClient) -> None:
    limits = Limits(cpus=0.5, memory_mb=256, pids=100)
    async with SandboxPool("nomad", **options, slots_per_sandbox=1, limits=limits) as pool, pool.slot() as slot:
        host = container(engine, nomad_agent, sandbox_of(slot)).attrs["HostConfig"]
        assert host["Memory"] == 256 << 20
        assert host["CpuQuota"] / host["CpuPeriod"] == pytest.approx(0.5, rel=0.02)
        assert set(slot.isolation.limits) >= {"cpus", "memory_mb", "pids"}
        result = await slot.run("head -c 400000000 /dev/zero | tail", timeout_s=60)
        assert result.oom_killed
        assert (await slot.run("echo on")).stdout == "on\n"


async def test_the_name_of_a_container(options: dict[str, Any], nomad_agent: Agent, engine: DockerClient) -> None:
    """Sandboxes of this backend are nothing that the docker backend on the same engine would take for its own."""
    async with SandboxPool("nomad", **options) as pool, pool.slot() as slot:
        labels = container(engine, nomad_agent, sandbox_of(slot)).labels
        assert not [name for name in labels if re.match("hermes-exec", name)]
        theirs = make_backend("docker", {"image": options["image"]})
        try:
            assert sandbox_of(slot) not in {info.sandbox for info in await theirs.sandboxes()}
        finally:
            await theirs.aclose()
