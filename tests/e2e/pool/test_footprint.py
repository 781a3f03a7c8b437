"""What idle slots cost in memory: each process's share, since all of them map the same program."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

import anyio
import pytest

from benchmarks.memory import children, memory_kb
from hermes_exec import SandboxPool
from tests.support.outside import runner_pid

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.geteuid() != 0, reason="only root reads the maps of a runner")]
SLOTS = 64


def share_kb(pid: int) -> int:
    """The proportional set size."""
    return memory_kb(pid, "Pss")


def peak_bytes(pid: int) -> int:
    """The most that it has had resident, as far as the kernel remembers."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) << 10


async def test_idle_slots_take_little_memory() -> None:
    async with SandboxPool("local", max_sandboxes=1, slots_per_sandbox=SLOTS) as pool:
        slots = [await pool.acquire() for _ in range(SLOTS)]
        runner = runner_pid(slots[0].sandbox)
        for slot in slots:
            await slot.run("true")
        assert share_kb(runner) < 10_240
        shares = [share_kb(pid) for pid in children(runner)]
        assert len(shares) == SLOTS + 1  # one agent waits for a slot
        assert median(shares) < 3_072


@pytest.mark.whole
async def test_memory_is_given_back_after_large_work() -> None:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        await slot.run("i=0; while [ $i -lt 20000 ]; do : > f$i; i=$((i+1)); done")
        runner = runner_pid(slot.sandbox)
        agent, *_ = children(runner)
        before = share_kb(agent) + share_kb(runner)
        await slot.files.list(".")
        await slot.files.write_bytes("big", b"x" * (24 << 20))
        assert len(await slot.files.read_bytes("big")) == 24 << 20
        with anyio.fail_after(60):
            while share_kb(agent) + share_kb(runner) > before + 5_000:  # noqa: ASYNC110 - other processes set no events
                await anyio.sleep(0.2)
        # The kernel sums up what each processor has counted by so many pages at a time.
        processors = os.cpu_count() or 1
        unsummed = max(32, 2 * processors) * processors * os.sysconf("SC_PAGE_SIZE")
        assert (await slot.run("true")).usage.max_rss_bytes < peak_bytes(agent) + unsummed
        assert peak_bytes(agent) < 16 << 20


async def test_a_resting_slot_does_not_keep_the_program_mapped() -> None:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        await slot.run("true")
        agent, *_ = children(runner_pid(slot.sandbox))
        with anyio.fail_after(60):
            while memory_kb(agent) <= 5_000:  # one that is looked at late rests already
                await slot.run("true")
            while memory_kb(agent) > 4_500:  # noqa: ASYNC110 - other processes set no events
                await anyio.sleep(0.2)
        assert (await slot.run("echo $((6 * 7))")).stdout == "42\n"
