"""`pool.abilities`: one launch, no slot taken, its errors. The conformance suite compares the answers with requests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from hermes_exec import (
    Abilities,
    AcquireTimeout,
    ConfigError,
    ImageError,
    Limits,
    ProfileConfig,
    SandboxPool,
    SlotClosed,
)
from hermes_exec.testing.conformance import run_conformance
from tests.engines.modal_server import Server
from tests.support.nomad_agent import Agent
from tests.support.outside import runner_pid

pytestmark = pytest.mark.anyio
Image = Callable[[str], str]
PER_PROCESS = {"open_files", "file_size_mb", "cpu_time_s"}
OF_CONTAINER = PER_PROCESS | {"cpus", "memory_mb", "pids"}


async def check_answers(factory: Callable[..., SandboxPool]) -> None:
    """Compare each ability with what a request gets."""
    (outcome,) = (await run_conformance(factory, select=["abilities_are_what_requests_get"])).outcomes
    assert outcome.status == "passed", outcome.reason


async def ask_together(pool: SandboxPool, count: int, *arguments: Any) -> set[Abilities]:
    answers = set()

    async def ask() -> None:
        answers.add(await pool.abilities(*arguments))

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(ask)
    return answers


@pytest.mark.loops
async def test_calls_at_the_same_time_share_a_launch_and_take_no_slot() -> None:
    async with SandboxPool("local", slots_per_sandbox=1, min_isolation="none") as pool:
        (abilities,) = await ask_together(pool, 20)
        assert abilities.slot_limits >= PER_PROCESS
        assert abilities.sandbox_limits == PER_PROCESS
        assert (abilities.users, abilities.own_root, abilities.gpus) == (False, False, False)
        stats = pool.stats()
        assert (stats.launches, stats.slots_free, stats.acquired, stats.waiting) == (1, 1, 0, 0)
        async with pool.slot(timeout_s=10) as slot:
            assert slot.isolation.level == abilities.isolation
            assert await pool.abilities() is abilities
            assert await pool.abilities(ProfileConfig(env={"A": "b"})) is abilities
        assert pool.stats().launches == 1


def test_abilities_in_the_blocking_form() -> None:
    with SandboxPool("local") as pool:
        assert pool.abilities().slot_limits >= PER_PROCESS


async def test_request_with_the_same_limits_gets_the_examined_sandbox() -> None:
    limited = ProfileConfig(slot_limits=Limits(memory_mb=64, open_files=77), best_effort_limits=True)
    async with SandboxPool("local") as pool:
        abilities = await pool.abilities(limited)
        async with pool.slot(limited) as slot:
            assert (await slot.run("ulimit -n")).stdout == "77\n"
            assert (not slot.isolation.limits["memory_mb"].startswith("cgroup")) == (
                "memory_mb" not in abilities.slot_limits
            )
        assert pool.stats().launches == 1


async def test_abilities_of_another_template_get_their_turn_among_requests() -> None:
    async with SandboxPool("local", max_sandboxes=1, slots_per_sandbox=2) as pool:
        answered = anyio.Event()

        async def ask() -> None:
            await pool.abilities(ProfileConfig(slot_limits=Limits(open_files=77)))
            answered.set()

        async def hold() -> None:
            while not answered.is_set():
                async with pool.slot():
                    await anyio.sleep(0.05)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for task in (hold, hold, ask):
                    tasks.start_soon(task)
                    await anyio.sleep(0.02)


async def test_wrong_profile_and_closed_pool_raise_as_acquire() -> None:
    async with SandboxPool("local") as pool:
        for call in (pool.abilities, pool.acquire):
            with pytest.raises(ConfigError, match="profile"):
                await call("absent")
            with pytest.raises(ConfigError, match="has no images"):
                await call(image="debian")
    with pytest.raises((SlotClosed, RuntimeError)) as of_acquire:
        await pool.acquire()
    with pytest.raises(of_acquire.type, match=str(of_acquire.value)):
        await pool.abilities()


@pytest.mark.docker
async def test_missing_image_raises_as_acquire(docker_image: Image) -> None:
    async with SandboxPool("docker", image=docker_image("busybox"), pull_policy="never") as pool:
        with pytest.raises(ImageError):
            await pool.abilities(image="hermes-exec-test/absent")


@pytest.mark.docker
async def test_abilities_of_a_whole_container_leave_its_holder_alone(docker_image: Image) -> None:
    async with SandboxPool("docker", image=docker_image("busybox"), max_sandboxes=1) as pool, pool.slot() as slot:
        process = await slot.spawn(["sleep", "60"])
        before = (await slot.run("ls -A / /tmp /workspace")).stdout
        abilities = await pool.abilities()
        assert abilities == Abilities("exclusive", frozenset(PER_PROCESS), frozenset(OF_CONTAINER), True, True, True)
        assert (await slot.run("ls -A / /tmp /workspace")).stdout == before
        with pytest.raises(TimeoutError):
            await process.wait(0.2)
        assert pool.stats().launches == 1


@pytest.mark.docker
@pytest.mark.parametrize("root", ["own", "shared"])
async def test_abilities_of_slots_of_a_container(docker_image: Image, root: str) -> None:
    options: dict[str, Any] = {"image": docker_image("busybox"), "slots_per_sandbox": 2, "slot_root": root}
    async with SandboxPool("docker", **options) as pool:
        (abilities,) = await ask_together(pool, 5)
        assert (abilities.users, abilities.own_root) == (root == "own",) * 2
        assert abilities.sandbox_limits == OF_CONTAINER
        assert pool.stats().launches == 1
    await check_answers(lambda **more: SandboxPool("docker", **{**options, **more}))


@pytest.mark.nomad
async def test_abilities_of_apptainer_on_nomad(nomad_agent: Agent, singularity_image: Image) -> None:
    options = nomad_agent.options(driver="singularity", image=singularity_image("busybox"), slots_per_sandbox=2)
    await check_answers(lambda **more: SandboxPool("nomad", **{**options, **more}))


@pytest.mark.modal
async def test_abilities_include_gpus(modal_server: Server, docker_image: Image) -> None:
    modal_server.switch("faults", {"gpus": ["T4"]})
    options: dict[str, Any] = {"image": docker_image("debian"), "creates_per_s": None}
    async with SandboxPool("modal", gpus="T4", **options) as pool:
        assert (await pool.abilities()).gpus
        assert not (await pool.abilities(ProfileConfig(backend_options={"gpus": None}))).gpus


async def test_abilities_of_a_sandbox_that_does_not_answer_raise_acquire_timeout() -> None:
    async with SandboxPool("local", acquire_timeout_s=1) as pool, pool.slot() as slot:
        pid = runner_pid(slot.sandbox)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(AcquireTimeout, match="does not answer"):
                await pool.abilities()
        finally:
            os.kill(pid, signal.SIGCONT)
