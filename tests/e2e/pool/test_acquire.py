"""Acquire, release and reset on real sandboxes: gangs, their order, and holders of a slot whose sandbox dies."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import AsyncIterator

import anyio
import pytest

from hermes_exec import (
    Acquired,
    AcquireTimeout,
    ConfigError,
    PoolEvent,
    Reset,
    SandboxDied,
    SandboxPool,
    Slot,
    SlotClosed,
)
from tests.conftest import BackendCase
from tests.support.outside import count_becomes, mark, runner_pid
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pool(anyio_backend: str) -> AsyncIterator[SandboxPool]:
    async with SandboxPool("local", slots_per_sandbox=4) as pool:
        yield pool


@pytest.mark.loops
async def test_sixty_four_slots_at_once(backend: BackendCase) -> None:
    async with SandboxPool(backend.backend, **backend.options, slots_per_sandbox=64, max_sandboxes=1) as pool:
        async with pool.slots(64) as slots:
            assert len({slot.id for slot in slots}) == 64
            assert len({slot.workspace for slot in slots}) in (1, 64)
            seen: dict[str, str] = {}

            async def work(slot: Slot) -> None:
                await slot.files.write_text("name", slot.id)
                seen[slot.id] = (await slot.run("cat name; ls | wc -l")).stdout

            async with anyio.create_task_group() as tasks:
                for slot in slots:
                    tasks.start_soon(work, slot)
            assert {name: text.removesuffix("1\n").strip() for name, text in seen.items()} == {
                slot.id: slot.id for slot in slots
            }
        stats = pool.stats()
        assert (stats.slots_in_use, stats.slots_free, stats.slots_quarantined) == (0, 64, 0)


@pytest.mark.loops
async def test_a_gang_waits_for_all_and_is_served_in_order(pool: SandboxPool) -> None:
    order: list[str] = []
    first = await pool.acquire()

    async def gang() -> None:
        async with pool.slots(4):
            order.append("gang")

    async def single() -> None:
        async with pool.slot():
            order.append("single")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gang)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(single)
        await anyio.wait_all_tasks_blocked()
        assert order == []
        await pool.release(first)
    assert order == ["gang", "single"]


async def test_a_gang_that_waits_too_long_gets_nothing(pool: SandboxPool) -> None:
    async with pool.slot():
        with pytest.raises(AcquireTimeout, match="waited for 4"):
            async with pool.slots(4, timeout_s=0.2):
                pass
        async with pool.slots(3):
            pass


async def test_impossible_requests_are_refused_at_once(pool: SandboxPool) -> None:
    with pytest.raises(ConfigError, match="at most 4"):
        async with pool.slots(5):
            pass
    for bad in (0, -1, True, 1.5):
        with pytest.raises(ConfigError):
            async with pool.slots(bad):  # type: ignore[arg-type]
                pass
    for timeout_s in (-1, 0, math.nan, math.inf):
        with pytest.raises(ConfigError):
            await pool.acquire(timeout_s=timeout_s)
    with pytest.raises(ConfigError, match="did you mean 'local'"):
        SandboxPool("locl")
    with pytest.raises(ConfigError, match="no profile"):
        await pool.acquire(profile="gpu")
    with pytest.raises(ConfigError, match="no images"):
        await pool.acquire(image="debian")
    with pytest.raises(ConfigError):
        await pool.prewarm(2)


@pytest.mark.loops
async def test_release_resets_and_repeating_it_is_harmless(pool: SandboxPool) -> None:
    word = mark()
    slot = await pool.acquire()
    await slot.files.write_text("left", "x")
    process = await slot.spawn(["sleep", word])
    session = slot.session()
    await session.run("X=1")
    async with slot.forward(9) as forward:
        await pool.release(slot)
        with pytest.raises(OSError, match="failed"):
            await anyio.connect_tcp("127.0.0.1", forward.port)
    await pool.release(slot)
    await count_becomes(word, 0)
    calls = (
        lambda: slot.run("true"),
        lambda: slot.files.read_text("left"),
        lambda: process.wait(),
        lambda: process.stdout.receive(),
        lambda: session.run("true"),
        lambda: slot.reset(),
        lambda: slot.processes(),
        lambda: slot.connect(1),
    )
    for call in calls:
        with pytest.raises(SlotClosed):
            await call()
    with pytest.raises(SlotClosed):
        slot.session()
    for _ in range(4):
        async with pool.slot() as again:
            assert await again.files.list(".") == []


@pytest.mark.loops
async def test_release_ends_calls_under_way(pool: SandboxPool) -> None:
    slot = await pool.acquire()
    word = mark()
    caught: list[BaseException] = []

    async def call() -> None:
        try:
            await slot.run(["sleep", word])
        except SlotClosed as error:
            caught.append(error)

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(call)
        await count_becomes(word, 5)
        await pool.release(slot)
    assert len(caught) == 5
    await count_becomes(word, 0)


async def test_reset_keeps_the_slot_and_ends_its_handles(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        name = slot.id
        await slot.files.write_text("a", "x")
        session = slot.session()
        await session.run("cd /usr")
        await slot.reset()
        assert slot.id == name
        assert await slot.files.list(".") == []
        with pytest.raises(SlotClosed):
            await session.run("pwd")
        assert (await slot.session().run("pwd")).stdout.strip() == slot.workspace


async def test_the_most_slots_are_those_of_the_kind_that_can_have_most() -> None:
    narrow = {"slots_per_sandbox": 5, "max_sandboxes": 1}
    pool = SandboxPool("local", slots_per_sandbox=2, max_sandboxes=3, profiles={"narrow": narrow})
    assert pool.stats().slots_most == 6


@pytest.mark.parametrize("after", range(0, 40, 4))
async def test_what_was_acquired_and_came_back_balances(after: int) -> None:
    events: list[PoolEvent] = []
    async with SandboxPool("local", slots_per_sandbox=4, on_event=events.append) as pool:
        assert pool.stats().slots_most == 4
        async with pool.slot():
            with anyio.move_on_after(after * 0.001):
                async with pool.slots(3):
                    await anyio.sleep(0.01)
            held = await pool.acquire()
            await held.reset()
            await pool.release(held)
            assert pool.stats().acquired - pool.stats().released == 1
        while pool.stats().slots_in_use:  # noqa: ASYNC110 - stats are polled
            await anyio.sleep(0.01)
        stats = pool.stats()
    assert stats.acquired == stats.released >= 2
    acquired = sum(isinstance(event, Acquired) for event in events)
    back = [event for event in events if isinstance(event, Reset)]
    assert acquired == stats.acquired == sum(not event.held for event in back)
    assert sum(event.held for event in back) == 1


@pytest.mark.loops
@pytest.mark.parametrize("after", range(0, 60, 4))
async def test_cancelling_at_any_point_leaves_nothing_behind(after: int) -> None:
    word = mark()
    async with SandboxPool("local", slots_per_sandbox=2) as pool:
        with anyio.move_on_after(after * 0.01):
            async with pool.slots(2) as (one, two):
                await one.spawn(["sleep", word])
                await two.run(["sleep", word])
        if pool.stats().sandboxes["ready"]:
            async with pool.slots(2, timeout_s=10) as slots:
                assert [await slot.files.list(".") for slot in slots] == [[], []]
    await count_becomes(word, 0)


@pytest.mark.loops
async def test_a_sandbox_that_is_killed_in_mid_command(pool: SandboxPool) -> None:
    events: list[PoolEvent] = []
    word = mark()
    async with anyio.create_task_group() as tasks:
        listener = pool.events()

        async def listen() -> None:
            events.extend([event async for event in listener])

        tasks.start_soon(listen)
        slot, other = await pool.acquire(), await pool.acquire()
        caught: list[SandboxDied] = []

        async def call(held: Slot) -> None:
            try:
                await held.run(["sleep", word])
            except SandboxDied as error:
                caught.append(error)

        async with anyio.create_task_group() as calls:
            calls.start_soon(call, slot)
            calls.start_soon(call, other)
            await count_becomes(word, 2)
            began = time.monotonic()
            os.kill(runner_pid(slot.sandbox), signal.SIGKILL)
        assert time.monotonic() - began < 30
        assert [error.post_mortem is not None and error.sandbox == slot.sandbox for error in caught] == [True, True]
        with pytest.raises(SandboxDied) as later:
            await slot.run("true")
        assert later.value.post_mortem is not None
        assert later.value.post_mortem.exit_code == 137
        async with pool.slot(timeout_s=30) as fresh:
            assert fresh.sandbox != slot.sandbox
            assert (await fresh.run("echo replaced")).stdout == "replaced\n"
        with pytest.raises(SandboxDied):
            await slot.run("true")
        await pool.release(slot)
        await pool.release(other)
        assert pool.stats().slots_in_use == 0
        await listener.aclose()
    names = [type(event).__name__ for event in events]
    assert names.count("Died") == 1
    assert names.count("Launched") == 2
    await count_becomes(word, 0)


@pytest.mark.docker
async def test_a_container_that_is_removed_in_mid_command(docker_image: object) -> None:
    import docker

    image = docker_image("busybox")  # type: ignore[operator]
    async with SandboxPool("docker", image=image, max_sandboxes=1) as pool:
        slot = await pool.acquire()
        client = docker.from_env()

        async def call() -> SandboxDied:
            with pytest.raises(SandboxDied) as caught:
                await slot.run("sleep 100")
            return caught.value

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.sleep(0.2)
            await anyio.to_thread.run_sync(lambda: client.containers.get(slot.sandbox).remove(force=True))
        client.close()
        with pytest.raises(SandboxDied):
            await slot.files.list(".")
        async with pool.slot(timeout_s=60) as fresh:
            assert fresh.sandbox != slot.sandbox


@pytest.mark.docker
async def test_a_whole_sandbox_is_used_once_and_the_next_one_is_there(docker_image: object) -> None:
    image = docker_image("busybox")  # type: ignore[operator]
    seen = set()
    async with SandboxPool("docker", image=image, max_sandboxes=3, slots_per_sandbox=1) as pool:
        for turn in range(4):
            launches = pool.stats().launches
            async with pool.slot() as slot:
                assert slot.isolation.level == "exclusive"
                assert slot.sandbox not in seen
                seen.add(slot.sandbox)
                assert (await slot.run("ls /etc/changed; touch /etc/changed")).stdout == ""
                if turn < 2:  # a program that takes a slot or two has no sandbox launched that it does not ask for
                    assert pool.stats().launches == launches + 1
                else:
                    await until(lambda: pool.stats().slots_free == 1)


async def test_profiles_share_one_cap() -> None:
    profiles: dict[str, dict[str, object]] = {"small": {"slots_per_sandbox": 2}, "other": {"env": {"WHICH": "other"}}}
    async with SandboxPool("local", slots_per_sandbox=1, max_sandboxes=2, profiles=profiles) as pool:
        async with pool.slot("small") as one, pool.slot("small") as two, pool.slot("other") as three:
            assert one.sandbox == two.sandbox != three.sandbox
            assert (await three.run("echo $WHICH")).stdout == "other\n"
        async with pool.slot() as four:
            assert four.sandbox not in (one.sandbox, three.sandbox)
            assert sum(pool.stats().sandboxes.values()) <= 2


async def test_a_profile_may_have_any_name() -> None:
    profiles = {"default": {"env": {"WHO": "default"}}}
    async with SandboxPool("local", max_sandboxes=2, env={"WHO": "the pool"}, profiles=profiles) as pool:
        async with pool.slot() as slot, pool.slot(profile="default") as other:
            assert [(await one.run("echo $WHO")).stdout for one in (slot, other)] == ["the pool\n", "default\n"]
        with pytest.raises(ConfigError, match="at most 2 of profile 'default'"):
            await pool.prewarm(1000, profile="default")
