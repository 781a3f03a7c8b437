"""Pools that all parts of a program share: which callers get the same one, and when it ends."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_exec import ConfigError, LocalConfig, PoolConfig, ProfileConfig, SandboxPool, SlotClosed, blocking
from hermes_exec.pool import shared
from hermes_exec.pool.shared import SharedPools, shared_pools
from hermes_exec.results import PoolEvent
from tests.support.outside import alive, ends, runner_pid
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[3]


def wait_for_end(pid: int) -> None:
    anyio.run(ends, pid)


@pytest.mark.anyio
async def test_shared_pool_is_the_same_for_equal_settings_only(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text("backend: local\nnote: equal\nslot_limits: {open_files: 64}\n")
    same: dict[str, Any] = {"backend": "local", "note": "equal", "slot_limits": {"open_files": 64}}
    pool = SandboxPool.shared(path)
    assert not pool.is_open
    assert SandboxPool.shared(same) is pool
    assert SandboxPool.shared(PoolConfig(note="equal", slot_limits={"open_files": 64})) is pool
    assert SandboxPool.shared({"note": "equal"}, slot_limits={"open_files": 64}) is pool
    assert SandboxPool.shared({**same, "readonly_paths": []}) is pool
    others: list[dict[str, Any]] = [
        {"note": "other"},
        {"slot_limits": {"open_files": 64, "pids": None}},
        {"readonly_paths": ["/opt"]},
        {"secrets": {"A": "b"}},
        {"secrets": {"A": "c"}},
        {"profiles": {"a": ProfileConfig(env={"A": "b"})}},
        {"on_event": print},
    ]
    pools = [pool, *(SandboxPool.shared(same, **more) for more in others)]
    assert len(set(map(id, pools))) == len(pools)
    assert SandboxPool.shared(same, on_event=print) is pools[-1]
    assert SandboxPool.shared(same, backend=LocalConfig()) is pool
    with pytest.raises(ConfigError, match="max_sandboxes"):
        SandboxPool.shared({"max_sandboxs": 1})
    with pytest.raises(RuntimeError, match=r"use `hermes_exec.SandboxPool.shared"):
        blocking.SandboxPool.shared(same)


@dataclass
class Listener:
    """Counts events. Two listeners with equal counts are equal."""

    count: int = 0

    def add(self, _: PoolEvent) -> None:
        self.count += 1

    __call__ = add


@pytest.mark.anyio
async def test_shared_pools_with_callbacks_of_different_objects_are_different() -> None:
    first, second, events = Listener(), Listener(), list[PoolEvent]()
    pools = [SandboxPool.shared({}, on_event=each) for each in (first, second, first.add, second.add, events.append)]
    assert len(set(map(id, pools))) == len(pools)
    first.count += 1
    events.clear()
    again = [SandboxPool.shared({}, on_event=each) for each in (first, second, first.add, second.add, events.append)]
    assert again == pools


@pytest.mark.anyio
async def test_shared_pool_that_is_opened_again_is_used() -> None:
    pool = await SandboxPool.shared({"note": "reopened", "idle_timeout_s": 0.5}).open()
    for _ in range(6):
        await anyio.sleep(0.2)
        assert await SandboxPool.shared({"note": "reopened", "idle_timeout_s": 0.5}).open() is pool
    await pool.aclose()


def test_shared_pools_of_a_process_are_the_same_for_threads_that_ask_first(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, results = threading.Barrier(8), list[SharedPools]()

    def ask() -> None:
        begin.wait()
        results.append(shared_pools())

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            monkeypatch.setattr(shared, "_pools", type(shared._pools)())
            results.clear()
            threads = [threading.Thread(target=ask) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert results == results[:1] * 8
    finally:
        sys.setswitchinterval(interval_s)


@pytest.mark.anyio
@pytest.mark.docker
async def test_shared_pool_without_image_takes_those_of_requests(docker_image: Callable[[str], str]) -> None:
    pool = await SandboxPool.shared({"backend": "docker"}).open()
    with pytest.raises(ConfigError, match="needs an image"):
        await pool.acquire()
    async with pool.slot(image=docker_image("busybox")) as first, pool.slot(image=docker_image("debian")) as second:
        assert await first.files.exists("/bin/busybox")
        assert await second.files.exists("/etc/debian_version")
    await pool.aclose()


@pytest.mark.anyio
async def test_shared_pool_without_settings_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_EXEC_NOTE", "from the environment")
    assert SandboxPool.shared().config.note == "from the environment"
    assert SandboxPool.shared() is SandboxPool.shared({"note": "from the environment"})


@pytest.mark.anyio
@pytest.mark.loops
async def test_shared_pool_that_was_closed_is_replaced() -> None:
    first = await SandboxPool.shared({"note": "closed"}).open()
    await first.aclose()
    second = SandboxPool.shared({"note": "closed"})
    assert second is not first
    async with second, second.slot() as slot:
        assert (await slot.run("true")).ok
    assert SandboxPool.shared({"note": "closed"}) not in (first, second)


@pytest.mark.anyio
@pytest.mark.loops
async def test_shared_pool_closes_after_its_idle_timeout_without_slots() -> None:
    settings = {"note": "idle", "idle_timeout_s": 0.3}
    pool = await SandboxPool.shared(settings).open()
    slot = await pool.acquire()
    pid = runner_pid(slot.sandbox)
    await anyio.sleep(0.9)  # longer than the timeout: a slot that is held keeps the pool open
    assert (await slot.run("echo held")).stdout == "held\n"
    await pool.release(slot)
    await until(lambda: not pool.is_open and not alive(pid))
    with pytest.raises(SlotClosed):
        await pool.acquire()
    again = await SandboxPool.shared(settings).open()
    async with again.slot() as slot:
        assert (await slot.run("true")).ok
    await again.aclose()


@pytest.mark.anyio
async def test_pool_that_is_not_shared_stays_open_when_idle() -> None:
    async with SandboxPool("local", idle_timeout_s=0.1) as pool:
        await anyio.sleep(0.5)
        assert pool.is_open


def test_shared_pools_of_event_loops_are_different_and_end_with_their_loop() -> None:
    async def use() -> tuple[SandboxPool, int]:
        pool = await SandboxPool.shared({"note": "loops"}).open()
        assert pool is SandboxPool.shared({"note": "loops"})
        slot = await pool.acquire()
        return pool, runner_pid(slot.sandbox)

    for run in (asyncio.run, asyncio.run, lambda work: anyio.run(lambda: work, backend="trio")):
        pool, pid = run(use())
        assert not pool.is_open
        wait_for_end(pid)
    with pytest.raises(RuntimeError, match=r"use `hermes_exec.blocking.SandboxPool.shared"):
        SandboxPool.shared({"note": "loops"})


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_event_loop_that_is_only_closed_leaves_no_sandbox() -> None:
    loop = asyncio.new_event_loop()

    async def use() -> tuple[SandboxPool, int]:
        pool = await SandboxPool.shared({"note": "only closed"}).open()
        return pool, runner_pid((await pool.acquire()).sandbox)

    pool, pid = loop.run_until_complete(use())
    loop.close()
    wait_for_end(pid)
    assert not pool.is_open
    assert asyncio.run(_shared_again()) is not pool


async def _shared_again() -> SandboxPool:
    return SandboxPool.shared({"note": "only closed"})


def test_blocking_shared_pool_is_the_same_in_all_threads_and_may_be_opened_again() -> None:
    settings = {"note": "blocking", "slots_per_sandbox": 4}
    pools: list[blocking.SandboxPool] = []

    def use() -> None:
        pool = blocking.SandboxPool.shared(settings).open()
        with pool.slot() as slot:
            assert slot.run("echo hi").stdout == "hi\n"
        pools.append(pool)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pools == pools[:1] * 4
    assert pools[0].stats().launches == 1
    pools[0].close()
    assert not pools[0].is_open
    with blocking.SandboxPool.shared(settings).open().slot() as slot:
        assert slot.run("true").ok
    blocking.SandboxPool.shared(settings).close()


def _use_in_worker(number: int) -> tuple[int, int, str]:
    slot = blocking.SandboxPool.shared({"note": "workers"}).open().acquire()
    return number, os.getpid(), slot.sandbox


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_workers_have_pools_of_their_own_which_end_with_them() -> None:
    ours = blocking.SandboxPool.shared({"note": "workers"}).open()
    slot = ours.acquire()
    with multiprocessing.get_context("fork").Pool(2) as workers:
        used = workers.map(_use_in_worker, range(6), chunksize=1)
        workers.close()
        workers.join()
    sandboxes = {(pid, sandbox) for _, pid, sandbox in used}
    assert len(sandboxes) == len({pid for pid, _ in sandboxes})
    for _, sandbox in sandboxes:
        wait_for_end(runner_pid(sandbox))
    assert slot.run("echo ours").stdout == "ours\n"
    ours.close()


PROGRAMS = {
    "blocking": "print(blocking.SandboxPool.shared({'lease_s': 600}).open().acquire().sandbox, flush=True)",
    "asyncio": "asyncio.run(use())",
    "loop": "asyncio.new_event_loop().run_until_complete(use())",
}


@pytest.mark.parametrize("how", PROGRAMS)
def test_program_that_ends_leaves_no_sandbox_of_its_shared_pool(how: str) -> None:
    program = f"""
        import asyncio
        from hermes_exec import SandboxPool, blocking
        async def use():
            pool = await SandboxPool.shared({{"lease_s": 600}}).open()
            print((await pool.acquire()).sandbox, flush=True)
        {PROGRAMS[how]}
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    wait_for_end(runner_pid(done.stdout.strip()))
