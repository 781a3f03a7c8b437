"""The pool on real boxes: lending, gangs, limits, what dies and what is left behind."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from hermes_exec import (
    AcquireTimeout,
    ConfigError,
    DockerConfig,
    LaunchError,
    PoolEvent,
    SandboxDied,
    SandboxPool,
    Slot,
    SlotClosed,
)
from tests.conftest import BackendCase
from tests.e2e.pool.outside import alive, count_becomes, ends, mark, marked, runner_pid

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pool(anyio_backend: str) -> AsyncIterator[SandboxPool]:
    async with SandboxPool("local", slots_per_sandbox=4) as pool:
        yield pool


@pytest.mark.sample
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
        assert (stats.slots_lent, stats.slots_free, stats.slots_quarantined) == (0, 64, 0)


@pytest.mark.sample
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


@pytest.mark.parametrize(
    "options",
    [
        {"max_sandboxes": 0},
        {"min_sandboxes": -1},
        {"min_sandboxes": 2},
        {"slots_per_sandbox": 0},
        {"acquire_timeout_s": math.nan},
        {"lease_s": -1},
        {"image": "debian"},
        {"no_such_option": 1},
        {"limits": {"memory_mb": -5}},
        {"limits": {"memory": 5}},
        {"env": {"A=B": "x"}},
        {"files": {"a": "/no/such/file"}},
        {"min_isolation": "box"},
        {"min_isolation": "much"},
        {"run_id": "a b"},
        {"profiles": {"a": {"min_sandboxes": 2}}},
        {"profiles": {"a": {"imag": "x"}}},
    ],
)
def test_bad_settings_are_refused_when_the_pool_is_made(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        SandboxPool("local", **options)  # type: ignore[arg-type]
    assert str(caught.value)


def test_docker_needs_an_image_and_a_config_object_has_its_own_options() -> None:
    with pytest.raises(ConfigError, match="needs an image"):
        SandboxPool("docker")
    with pytest.raises(ConfigError, match="belong into"):
        SandboxPool(DockerConfig(image="x"), user="root")
    assert "hidden" not in repr(SandboxPool(DockerConfig(image="x"), secrets={"A": "hidden"}))


@pytest.mark.sample
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


@pytest.mark.sample
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


@pytest.mark.sample
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


@pytest.mark.sample
async def test_a_box_that_is_killed_in_mid_command(pool: SandboxPool) -> None:
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
        assert pool.stats().slots_lent == 0
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
async def test_a_whole_box_is_reused_only_when_nothing_outside_the_slot_changed(docker_image: object) -> None:
    image = docker_image("busybox")  # type: ignore[operator]
    async with SandboxPool("docker", image=image, max_sandboxes=1, slots_per_sandbox=1) as pool:
        async with pool.slot() as slot:
            assert slot.isolation.level == "box"
            first = slot.sandbox
            await slot.run("echo x > $HOME/y; echo x > z")
        async with pool.slot() as slot:
            assert slot.sandbox == first
            assert (await slot.run("touch /etc/changed")).ok
        async with pool.slot() as slot:
            assert slot.sandbox != first
            assert not (await slot.run("ls /etc/changed")).ok


@pytest.mark.sample
async def test_closing_under_load_leaves_no_process() -> None:
    word = mark()
    caught: list[BaseException] = []
    pids: set[int] = set()
    async with SandboxPool("local", slots_per_sandbox=8, max_sandboxes=2) as pool:

        async def work() -> None:
            try:
                while True:
                    async with pool.slot() as slot:
                        pids.add(runner_pid(slot.sandbox))
                        await slot.run(f"setsid sleep {word} & sleep {word}")
            except SlotClosed as error:
                caught.append(error)

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(work)
            await count_becomes(word, 32)
            began = time.monotonic()
            await pool.aclose()
            assert time.monotonic() - began < 50
    assert len(caught) == 20
    assert marked(word) == []
    assert [pid for pid in pids if alive(pid)] == []
    with pytest.raises(SlotClosed):
        await pool.acquire()
    await pool.aclose()


@pytest.mark.sample
async def test_leaving_by_cancellation_ends_the_boxes() -> None:
    word = mark()
    pid = 0
    with anyio.move_on_after(2) as scope:
        async with SandboxPool("local") as pool, pool.slot() as slot:
            pid = runner_pid(slot.sandbox)
            await slot.spawn(["sleep", word])
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert not alive(pid)
    assert marked(word) == []


async def test_errors_of_the_block_are_passed_on() -> None:
    with pytest.raises(LookupError):
        async with SandboxPool("local") as pool, pool.slot():
            raise LookupError


@pytest.mark.sample
async def test_files_secrets_environment_and_setup(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "inner").write_text("in a tree")
    async with SandboxPool(
        "local",
        slots_per_sandbox=2,
        env={"PLAIN": "1"},
        secrets={"TOKEN": "s3cret"},
        files={"given/a.txt": b"from bytes", "copied": tmp_path / "tree"},
        setup="true",
        slot_setup=["echo $PLAIN > made"],
    ) as pool:
        for _ in range(3):
            async with pool.slot() as slot:
                assert (await slot.run("echo $PLAIN $TOKEN")).stdout == "1 s3cret\n"
                assert await slot.files.read_text("given/a.txt") == "from bytes"
                assert await slot.files.read_text("copied/inner") == "in a tree"
                assert await slot.files.read_text("made") == "1\n"
                await slot.files.write_text("given/a.txt", "changed")
                assert "s3cret" not in repr(pool) + repr(slot) + repr(pool.config)


async def test_a_failing_setup_is_a_launch_error() -> None:
    async with SandboxPool("local", setup="echo because; exit 3") as pool:
        began = time.monotonic()
        with pytest.raises(LaunchError, match="because"):
            await pool.acquire()
        assert time.monotonic() - began < 20
        assert pool.stats().failures >= 1
    async with SandboxPool("local", slot_setup="exit 4") as pool:
        with pytest.raises(LaunchError, match="exit code 4"):
            await pool.acquire()
        assert pool.stats().slots_lent <= 1


async def test_a_minimum_is_warm_and_entering_with_none_starts_nothing() -> None:
    async with SandboxPool("local", min_sandboxes=1) as pool:
        assert pool.stats().sandboxes["ready"] == 1
    async with SandboxPool("local") as pool:
        assert sum(pool.stats().sandboxes.values()) == 0
        await pool.prewarm(1)
        assert pool.stats().sandboxes["ready"] == 1


async def test_idle_boxes_go() -> None:
    async with SandboxPool("local", idle_timeout_s=0.2) as pool:
        async with pool.slot() as slot:
            pid = runner_pid(slot.sandbox)
        await ends(pid)
        async with pool.slot() as slot:
            assert runner_pid(slot.sandbox) != pid


async def test_profiles_share_one_cap() -> None:
    profiles: dict[str, dict[str, object]] = {"small": {"slots_per_sandbox": 2}, "other": {"env": {"WHICH": "other"}}}
    async with SandboxPool("local", slots_per_sandbox=1, max_sandboxes=2, profiles=profiles) as pool:
        async with pool.slot("small") as one, pool.slot("small") as two, pool.slot("other") as three:
            assert one.sandbox == two.sandbox != three.sandbox
            assert (await three.run("echo $WHICH")).stdout == "other\n"
        async with pool.slot() as four:
            assert four.sandbox not in (one.sandbox, three.sandbox)
            assert sum(pool.stats().sandboxes.values()) <= 2


@pytest.mark.sample
async def test_events_in_order_with_a_callback_that_fails() -> None:
    seen: list[str] = []

    async def on_event(event: PoolEvent) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append(type(event).__name__)
        raise LookupError("logged, not raised")

    async with SandboxPool("local", on_event=on_event) as pool:
        events = pool.events()
        async with pool.slot(owner="me"):
            pass
    heard = [type(event).__name__ async for event in events]
    assert heard[:5] == ["Scaled", "Launched", "Ready", "Lent", "Reset"]
    assert seen[:5] == heard[:5]
    assert events.dropped == 0


async def test_a_listener_that_does_not_read_loses_the_oldest() -> None:
    async with SandboxPool("local") as pool:
        events = pool.events()
        for _ in range(600):
            async with pool.slot():
                pass
        assert events.dropped >= 200
        assert type(await events.__anext__()).__name__ in {"Lent", "Reset"}


async def test_a_pool_after_fork_says_so() -> None:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for call in (pool.acquire(), pool.release(slot), slot.run("true")):
                    try:
                        call.send(None)
                    except RuntimeError as error:
                        code = 0 if "process" in str(error) else 2
                    if code:
                        break
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode((await anyio.to_thread.run_sync(os.waitpid, pid, 0))[1]) == 0
        assert (await slot.run("echo parent")).ok


async def test_a_pool_is_not_sent_to_another_process() -> None:
    import pickle

    with pytest.raises(TypeError, match="another process"):
        pickle.dumps(SandboxPool("local"))
