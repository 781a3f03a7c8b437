"""Streams that are silent, cut or carry false data: every call ends in time, with an error that says what is known."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

import anyio
import docker
import pytest
from anyio import to_thread

from hermes_exec import OutcomeUnknown, SandboxDied, SandboxPool
from hermes_exec.pool.sandbox import PooledSlot
from tests.chaos.containers import pause
from tests.support.outside import count_becomes, ends, frozen, mark, runner_pid

pytestmark = [pytest.mark.anyio, pytest.mark.loops]


async def test_a_timeout_holds_when_the_runner_is_frozen() -> None:
    async with SandboxPool("local", lease_s=60) as pool, pool.slot() as slot:
        word = mark()
        pid = runner_pid(slot.sandbox)

        async def freeze() -> None:
            await count_becomes(word, 1)
            await frozen(pid)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(freeze)
            began = time.monotonic()
            with pytest.raises(OutcomeUnknown):
                await slot.run(["sleep", word], timeout_s=10)
            assert time.monotonic() - began < 40
        began = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            await slot.run("true", timeout_s=0.5)
        assert time.monotonic() - began < 30
        os.kill(pid, signal.SIGCONT)
        assert (await slot.run("echo back", timeout_s=20)).stdout == "back\n"
        await count_becomes(word, 0)


async def test_cancelling_is_bounded_when_the_runner_is_frozen() -> None:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        await frozen(runner_pid(slot.sandbox))
        began = time.monotonic()
        with anyio.move_on_after(0.1):
            await slot.run("true")
        assert time.monotonic() - began < 30
        os.kill(runner_pid(slot.sandbox), signal.SIGCONT)


async def test_a_frozen_sandbox_is_not_acquired_and_not_destroyed() -> None:
    async with SandboxPool("local", slots_per_sandbox=2) as pool:
        async with pool.slot() as slot:
            pid = runner_pid(slot.sandbox)
        await frozen(pid)
        began = time.monotonic()
        try:
            with pytest.raises(TimeoutError):
                await pool.acquire(timeout_s=6.5)
            assert time.monotonic() - began < 30
            assert pool.stats().sandboxes["ready"] == 1
        finally:
            os.kill(pid, signal.SIGCONT)
        async with pool.slot(timeout_s=20) as slot:
            assert runner_pid(slot.sandbox) == pid


async def test_release_does_not_wait_for_a_frozen_sandbox() -> None:
    async with SandboxPool("local", max_sandboxes=1) as pool:
        async with pool.slot() as slot:
            pid = runner_pid(slot.sandbox)
            await frozen(pid)
            began = time.monotonic()
        assert time.monotonic() - began < 40
        async with pool.slot(timeout_s=30) as slot:
            assert runner_pid(slot.sandbox) != pid
            assert (await slot.run("echo replaced")).stdout == "replaced\n"
        await ends(pid)


async def test_a_holder_s_reset_waits_for_a_machine_that_stood_still() -> None:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        await slot.files.write_text("before", "")
        pid = runner_pid(slot.sandbox)
        await frozen(pid)

        async def wake() -> None:
            await anyio.sleep(8)
            os.kill(pid, signal.SIGCONT)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wake)
            await slot.reset()
        assert not await slot.files.exists("before")


async def test_other_slots_of_a_sandbox_that_was_silent_stay_with_their_holders() -> None:
    async with SandboxPool("local", max_sandboxes=2, slots_per_sandbox=2) as pool:
        async with pool.slot() as kept:
            slot = await pool.acquire()
            pid = runner_pid(slot.sandbox)
            assert runner_pid(kept.sandbox) == pid
            await frozen(pid)
            await pool.release(slot)
            os.kill(pid, signal.SIGCONT)
            assert (await kept.run("echo still here", timeout_s=20)).stdout == "still here\n"
            async with pool.slot(timeout_s=30) as slot:
                assert runner_pid(slot.sandbox) != pid
        await ends(pid)


@pytest.mark.docker
async def test_release_does_not_wait_for_a_paused_container(docker_image: Callable[[str], str]) -> None:
    async with SandboxPool("docker", image=docker_image("busybox"), max_sandboxes=1) as pool:
        with contextlib.closing(docker.from_env()) as client:
            async with pool.slot() as slot:
                first = slot.sandbox
                await to_thread.run_sync(lambda: pause(client.containers.get(first)))
                began = time.monotonic()
            assert time.monotonic() - began < 40
            async with pool.slot(timeout_s=30) as slot:
                assert slot.sandbox != first
            with pytest.raises(docker.errors.NotFound):
                await to_thread.run_sync(client.containers.get, first)


async def test_a_sandbox_that_dies_between_two_acquires_is_replaced_before_the_next() -> None:
    async with SandboxPool("local") as pool:
        async with pool.slot() as slot:
            pid = runner_pid(slot.sandbox)
        os.kill(pid, signal.SIGKILL)
        async with pool.slot(timeout_s=20) as slot:
            assert runner_pid(slot.sandbox) != pid
            assert (await slot.run("echo fine")).ok


async def test_many_sandboxes_die_while_many_wait() -> None:
    served: list[str] = []
    async with SandboxPool("local", slots_per_sandbox=2, max_sandboxes=2) as pool:

        async def work() -> None:
            while True:
                async with pool.slot(timeout_s=60) as slot:
                    try:
                        served.append((await slot.run("sleep 0.02; echo ok", check=True)).stdout)
                    except SandboxDied:
                        continue
                    return

        async def kill() -> None:
            for _ in range(4):
                await anyio.sleep(0.15)
                for sandbox in {slot.sandbox.id for slot in held(pool)}:
                    try:
                        os.kill(runner_pid(sandbox), signal.SIGKILL)
                    except ProcessLookupError:
                        continue

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill)
            for _ in range(30):
                tasks.start_soon(work)
        assert served == ["ok\n"] * 30
        stats = pool.stats()
        assert (stats.slots_in_use, stats.waiting) == (0, 0)
        assert sum(stats.sandboxes.values()) <= 2


def held(pool: SandboxPool) -> list[PooledSlot]:
    assert pool._running is not None
    return list(pool._running.releases.held.values())
