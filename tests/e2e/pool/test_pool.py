"""The pool as a whole: its settings, what it starts and ends, its events, and other processes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskStatus

from hermes_exec import (
    ConfigError,
    DockerConfig,
    LaunchError,
    PoolEvent,
    SandboxPool,
    SlotClosed,
)
from tests.support.outside import alive, count_becomes, ends, mark, marked, runner_pid

pytestmark = pytest.mark.anyio


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
        {"min_isolation": "exclusive"},
        {"min_isolation": "much"},
        {"run_id": "a b"},
        {"setup": False},
        {"slot_setup": ["true", 3]},
        {"on_event": "print"},
        {"on_pull": 3},
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
    with pytest.raises(ConfigError, match="belong in"):
        SandboxPool(DockerConfig(image="x"), user="root")
    assert "hidden" not in repr(SandboxPool(DockerConfig(image="x"), secrets={"A": "hidden"}))


@pytest.mark.loops
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


@pytest.mark.loops
async def test_leaving_by_cancellation_ends_the_sandboxes() -> None:
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


@pytest.mark.loops
async def test_holders_that_leave_late_when_all_is_cancelled_can_give_back() -> None:
    pids: list[int] = []
    with anyio.CancelScope() as scope:
        async with SandboxPool("local") as pool, anyio.create_task_group() as tasks:

            async def hold(*, task_status: TaskStatus[None]) -> None:
                async with pool.slot() as slot:
                    pids.append(runner_pid(slot.sandbox))
                    task_status.started()
                    try:
                        await anyio.sleep_forever()
                    finally:
                        with anyio.CancelScope(shield=True):
                            await anyio.wait_all_tasks_blocked()

            await tasks.start(hold)
            scope.cancel()
    assert scope.cancelled_caught
    assert [pid for pid in pids if alive(pid)] == []


async def test_errors_of_the_block_are_passed_on() -> None:
    with pytest.raises(LookupError):
        async with SandboxPool("local") as pool, pool.slot():
            raise LookupError


@pytest.mark.loops
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
        assert pool.stats().slots_in_use <= 1


async def test_a_minimum_is_warm_and_entering_with_none_starts_nothing() -> None:
    async with SandboxPool("local", min_sandboxes=1) as pool:
        assert pool.stats().sandboxes["ready"] == 1
    async with SandboxPool("local") as pool:
        assert sum(pool.stats().sandboxes.values()) == 0
        await pool.prewarm(1)
        assert pool.stats().sandboxes["ready"] == 1


async def test_idle_sandboxes_go() -> None:
    async with SandboxPool("local", idle_timeout_s=0.2) as pool:
        async with pool.slot() as slot:
            pid = runner_pid(slot.sandbox)
        await ends(pid)
        async with pool.slot() as slot:
            assert runner_pid(slot.sandbox) != pid


@pytest.mark.loops
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
    assert heard[:5] == ["Scaled", "Launched", "Ready", "Acquired", "Reset"]
    assert seen[:5] == heard[:5]
    assert events.dropped == 0


@pytest.mark.whole
async def test_a_listener_that_does_not_read_loses_the_oldest() -> None:
    async with SandboxPool("local") as pool:
        events = pool.events()
        for _ in range(600):
            async with pool.slot():
                pass
        assert events.dropped >= 200
        assert type(await events.__anext__()).__name__ in {"Acquired", "Reset"}


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


async def test_pools_of_one_run_have_slots_of_their_own() -> None:
    one, two = (SandboxPool("local", run_id="a-run") for _ in range(2))
    async with one, two, one.slot() as first, two.slot() as second:
        assert first.id != second.id
        assert first.id.startswith("a-run-")
        assert second.id.startswith("a-run-")
    for pool in (one, two):
        stats = pool.stats()
        assert (sum(stats.sandboxes.values()), stats.slots_total, stats.slots_in_use) == (0, 0, 0)
        assert stats.launches == 1


async def test_a_slot_is_acquired_by_a_block() -> None:
    async with SandboxPool("local") as pool:
        with pytest.raises(AttributeError, match=r"async with pool\.slot"):
            getattr(pool.slot(), "run")  # noqa: B009 - a type checker would refuse it


@pytest.mark.docker
async def test_a_pool_that_could_not_begin_holds_nothing(docker_image: Callable[[str], str]) -> None:
    image = docker_image("busybox")
    before = len(os.listdir("/proc/self/fd"))
    pools = [SandboxPool("docker", image=image, trace="/nonexistent/trace") for _ in range(5)]
    for pool in pools:
        with pytest.raises(ConfigError, match="nonexistent"):
            await pool.__aenter__()
    assert len(os.listdir("/proc/self/fd")) <= before + 1
