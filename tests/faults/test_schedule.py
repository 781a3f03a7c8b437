"""The faults themselves: the same seed gives the same ones, and each does what its name says."""

from __future__ import annotations

import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream

from hermes_exec import AcquireTimeout, ConfigError, LocalConfig, SandboxDied, SandboxPool
from hermes_exec.testing.faults import LAUNCH_FAULTS, SANDBOX_FAULTS, STREAM_FAULTS, Faults, backend, faulty, processes
from hermes_exec.testing.faults.clock import clock_jump
from hermes_exec.testing.faults.processes import SandboxProcesses
from hermes_exec.testing.faults.schedule import Step
from hermes_exec.testing.faults.stream import FaultyStream

pytestmark = [pytest.mark.anyio]
BENIGN = ("delay", "split", "bytewise")


class Pipe(ByteStream):
    """What is sent can be received again."""

    def __init__(self) -> None:
        self.kept = bytearray()
        self.closed = self.eof = False

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        piece = bytes(self.kept[:max_bytes])
        del self.kept[:max_bytes]
        if not piece:
            raise anyio.EndOfStream
        return piece

    async def send(self, item: bytes) -> None:
        self.kept += item

    async def send_eof(self) -> None:
        self.eof = True

    async def aclose(self) -> None:
        self.closed = True


def steps(seed: int, stream: int = 1) -> list[Step]:
    sending = Faults(seed).stream(1, stream).sending
    return [sending.step(5_000) for _ in range(200)]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kinds": ["cutt"]}, "did you mean 'cut'"),
        ({"kinds": ["cut", 3]}, "there is no fault 3"),
        ({"kinds": "cut"}, "must be a list of names, not the text 'cut'"),
        ({"sandbox_mean_s": 0}, "sandbox_mean_s must be above 0"),
        ({"sandbox_mean_s": -1.0}, "sandbox_mean_s must be above 0"),
        ({"sandbox_mean_s": math.nan}, "sandbox_mean_s must be above 0"),
        ({"sandbox_mean_s": None}, "sandbox_mean_s must be a number"),
    ],
)
def test_bad_schedules_are_refused(options: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Faults(1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("config", ["local", None, LocalConfig])
def test_faults_need_the_configuration_of_a_backend(config: object) -> None:
    with pytest.raises(ConfigError, match=r"such as LocalConfig\(\)"):
        faulty(config, Faults(1))  # type: ignore[type-var]
    with pytest.raises(ConfigError, match=r"such as Faults\(seed=1\)"):
        faulty(LocalConfig(), 1)  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_faults() -> None:
    assert steps(3) == steps(3)
    assert steps(3) != steps(4)
    assert steps(3) != steps(3, stream=2)
    assert [Faults(3).sandbox() for _ in range(3)] == [Faults(3).sandbox() for _ in range(3)]


def test_every_fault_comes_and_no_other_than_asked_for() -> None:
    seen = set()
    for seed in range(40):
        faults = Faults(seed)
        for direction in (faults.stream(1, 1).sending, faults.stream(1, 1).receiving):
            for _ in range(200):
                direction.step(5_000)
        seen |= {fault.what for fault in faults.log} | {faults.sandbox().kind for _ in range(10)}
        seen |= {"refuse-launch" for _ in range(10) if faults.launch().refuse}
        seen |= {"slow-launch" for _ in range(10) if faults.launch().slow_s}
    assert seen - {None} == {*STREAM_FAULTS, *SANDBOX_FAULTS, *LAUNCH_FAULTS}
    only = Faults(1, ["cut"])
    assert (only.launch()[1:], only.sandbox().kind) == ((False, 0.0), None)


def test_a_wrong_name_of_a_fault_is_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'kill-runner'"):
        Faults(1, ["kill-runer"])


async def test_what_is_split_or_late_arrives_whole() -> None:
    pipe, data = Pipe(), random.Random(0).randbytes(300_000)
    faults = Faults(2, BENIGN)
    stream = FaultyStream(pipe, faults.stream(1, 1))
    await stream.send(data)
    assert bytes(pipe.kept) == data
    got = b""
    while len(got) < len(data):
        got += await stream.receive(10_000)
    assert got == data
    assert {fault.what for fault in faults.log} == set(BENIGN)


async def test_a_cut_closes_the_stream_below() -> None:
    pipe = Pipe()
    stream = FaultyStream(pipe, Faults(2, ["cut"]).stream(1, 1))
    with pytest.raises(anyio.BrokenResourceError):
        await stream.send(bytes(10_000_000))
    assert pipe.closed
    with pytest.raises(anyio.BrokenResourceError):
        await stream.receive()


async def test_what_is_lost_is_lost_one_way_without_a_word() -> None:
    pipe = Pipe()
    stream = FaultyStream(pipe, Faults(2, ["lose"]).stream(1, 1))
    await stream.send(bytes(1_000_000))
    assert 0 < len(pipe.kept) < 1_000_000
    assert await stream.receive(10) == bytes(10)
    pipe.kept += bytes(1_000_000)
    got = 0
    with pytest.raises(anyio.EndOfStream):
        while True:
            got += len(await stream.receive(1_000))
    assert 0 < got < 1_000_000


async def test_a_half_closed_stream_ends_one_way_and_goes_on_the_other() -> None:
    pipe = Pipe()
    stream = FaultyStream(pipe, Faults(2, ["half-close"]).stream(1, 1))
    with pytest.raises(anyio.BrokenResourceError):
        await stream.send(bytes(1_000_000))
    assert pipe.eof
    assert await stream.receive(10) == bytes(10)
    pipe = Pipe()
    pipe.kept += bytes(1_000_000)
    stream = FaultyStream(pipe, Faults(2, ["half-close"]).stream(1, 1))
    with pytest.raises(anyio.EndOfStream):
        while True:
            await stream.receive(1_000)
    assert pipe.kept
    pipe.kept.clear()
    await stream.send(b"still")
    assert (bytes(pipe.kept), pipe.eof) == (b"still", False)


async def test_a_stall_holds_one_way_or_both(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def wait(until: float) -> None:
        waits.append(until)

    monkeypatch.setattr(anyio, "sleep_until", wait)
    monkeypatch.setattr(anyio, "sleep", wait)
    held = Counter[str]()
    for seed in range(20):
        faults = Faults(seed, ["stall"])
        pipe = Pipe()
        stream = FaultyStream(pipe, faults.stream(1, 1))
        while not faults.log:
            await stream.send(bytes(1_000))
        pipe.kept[:] = b"answer"
        assert await stream.receive() == b"answer"
        way = "both ways" if math.isfinite(waits[-1]) else "send"
        assert way in faults.log[0].detail
        held[way] += 1
    assert min(held["both ways"], held["send"]) > 0


async def test_commands_on_a_stream_that_breaks_run_once_with_all_their_output() -> None:
    faults = Faults(5, ("cut", *BENIGN))
    async with SandboxPool(faulty(LocalConfig(), faults), lease_s=30) as pool, pool.slot() as slot:
        for number in range(60):
            result = await slot.run(f"echo {number} >> ran; seq 1 3000", timeout_s=60)
            assert result.stdout == "".join(f"{i}\n" for i in range(1, 3001))
        assert await slot.files.read_text("ran") == "".join(f"{i}\n" for i in range(60))
    assert {"cut", *BENIGN} == {fault.what for fault in faults.log}


def seed_for(kind: str) -> int:
    """A seed with which the fault comes to the first sandbox."""
    return next(seed for seed in range(100) if Faults(seed, [kind]).sandbox().kind == kind)


@pytest.mark.parametrize("kind", ["kill-runner", "kill-sandbox"])
async def test_a_sandbox_that_is_killed_is_told_and_replaced(kind: str) -> None:
    faults = Faults(seed_for(kind), [kind], sandbox_mean_s=2.0)  # while the command runs, also on a busy machine
    async with SandboxPool(faulty(LocalConfig(), faults)) as pool:
        died = 0
        while not died:
            async with pool.slot() as slot:
                try:
                    await slot.run("sleep 20", timeout_s=30)
                except SandboxDied:
                    died += 1
    assert kind in {fault.what for fault in faults.log}
    assert f"sandbox {faults.log[0].sandbox}: {kind}" in str(faults.log[0])


async def test_the_process_that_carries_the_stream_can_be_killed_without_a_loss() -> None:
    faults = Faults(seed_for("kill-attach"), ["kill-attach"], sandbox_mean_s=0.2)
    async with SandboxPool(faulty(LocalConfig(), faults), max_sandboxes=4, slots_per_sandbox=1) as pool:

        async def work() -> None:
            async with pool.slot() as slot:
                assert (await slot.run("sleep 1; echo done")).stdout == "done\n"

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(work)
    assert any(fault.detail == "1 killed" for fault in faults.log)


async def test_a_launch_that_fails_is_tried_again() -> None:
    seed = next(seed for seed in range(100) if Faults(seed, ["refuse-launch"]).launch().refuse)
    faults = Faults(seed, LAUNCH_FAULTS)
    async with SandboxPool(faulty(LocalConfig(), faults)) as pool:
        for _ in range(3):
            async with pool.slot(timeout_s=60) as slot:
                assert (await slot.run("echo here")).stdout == "here\n"
    assert faults.log[0].what in LAUNCH_FAULTS


def processes_of(pool: SandboxPool) -> SandboxProcesses:
    """Those of the one sandbox of a pool."""
    assert pool._running is not None
    (slot,) = pool._running.releases.held.values()
    return SandboxProcesses(slot.sandbox.handle)


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="a small file system is mounted by root")
async def test_the_disk_of_a_sandbox_can_be_full_for_a_while(tmp_path: Path) -> None:
    await anyio.run_process(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(tmp_path)])
    try:
        async with SandboxPool(LocalConfig(base_dir=str(tmp_path))) as pool, pool.slot() as slot:
            sandbox = processes_of(pool)
            with sandbox.full_disk() as filled:
                assert filled > 7 << 20
                with pytest.raises(OSError, match="no space left"):
                    await slot.files.write_bytes("file", bytes(1000))
                assert (await slot.run("seq 100000 | tail -n 1")).stdout == "100000\n"
            await slot.files.write_bytes("file", bytes(1000))
            sandbox.close()
    finally:
        await anyio.run_process(["umount", str(tmp_path)])


async def test_a_disk_that_others_use_too_is_not_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SMALL_BYTES", 1)
    faults = Faults(seed_for("fill-disk"), ["fill-disk"], sandbox_mean_s=0.01)
    async with SandboxPool(faulty(LocalConfig(), faults)) as pool, pool.slot() as slot:
        with anyio.fail_after(60):
            while not faults.log:
                await slot.run("true")
    assert [fault.what for fault in faults.log] == ["no fill-disk"]


async def test_time_limits_hold_while_the_wall_clock_jumps() -> None:
    before = time.time()
    for by_s in (-1e9, 1e9):
        async with SandboxPool("local", max_sandboxes=1, slots_per_sandbox=1) as pool, pool.slot() as slot:
            with clock_jump(by_s):
                assert abs(time.time() - before - by_s) < 1e6
                assert abs(time.time_ns() / 1e9 - before - by_s) < 1e6
                assert (await slot.run("echo on", timeout_s=60)).stdout == "on\n"
                assert (await slot.spawn("sleep 1000")).age_s < 100
                assert [process.age_s < 100 for process in await slot.spawned()] == [True]
                late = await slot.run("sleep 1000", timeout_s=0.3)
                assert late.timed_out
                assert 0 < late.duration_s < 100
                with pytest.raises(AcquireTimeout):
                    await pool.acquire(timeout_s=0.1)
            assert (await slot.run("echo on", timeout_s=60)).stdout == "on\n"
    assert before <= time.time() < before + 1e6


async def test_the_wall_clock_jumps_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = seed_for("jump-clock")
    faults = Faults(seed, ["jump-clock"], sandbox_mean_s=0.01)
    ours, moved = time.time, []

    @contextmanager
    def noted(by_s: float) -> Iterator[None]:
        with clock_jump(by_s):
            moved.append(time.time is not ours)
            yield
        moved.append(time.time is not ours)

    monkeypatch.setattr(backend, "clock_jump", noted)
    async with SandboxPool(faulty(LocalConfig(), faults)) as pool, pool.slot() as slot:
        with anyio.fail_after(60):
            while len(moved) < 2:
                await slot.run("true")
    assert moved == [True, False]
    assert [fault.what for fault in faults.log] == ["jump-clock"]
