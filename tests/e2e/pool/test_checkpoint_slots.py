"""Checkpoints beside other properties of slots: volumes, limits, code kernels, and calls at the same time."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

import anyio
import pytest

from hermes_exec import ConfigError, Limits, SandboxPool, SlotClosed, tools
from hermes_exec.slot.checkpoint import ProcessPolicy
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
Image = Callable[[str], str]
Factory = Callable[..., SandboxPool]


@pytest.fixture
def pool_of(docker_image: Image) -> Factory:
    return partial(
        SandboxPool, "docker", image=docker_image("debian"), max_sandboxes=1, slots_per_sandbox=3, slot_root="own"
    )


async def test_volumes_are_private_and_shared_volumes_are_left_out(pool_of: Factory, tmp_path: Path) -> None:
    for name in ("private", "shared"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "given").write_text("host")
    volumes = {"volumes": [f"{tmp_path}/private:/private"], "shared_volumes": [f"{tmp_path}/shared:/shared"]}
    async with pool_of(**volumes) as pool, pool.slot() as slot:
        await slot.run("echo slot > /private/given; echo slot > /shared/given", check=True)
        checkpoint = await slot.checkpoint()
        assert "the shared volume /shared" in checkpoint.left_out
        await slot.run("echo later > /private/given; echo later > /shared/given", check=True)
        await slot.restore(checkpoint)
        async with pool.slot(from_=checkpoint) as fork:
            for each in (slot, fork):
                assert (await each.run("cat /private/given /shared/given")).stdout == "slot\nlater\n"
    assert (tmp_path / "private" / "given").read_text() == "host"


async def test_limits_hold_in_forks_and_after_a_restore(pool_of: Factory) -> None:
    async with pool_of(slot_limits=Limits(pids=40)) as pool, pool.slot() as slot:
        many = "for i in $(seq 60); do sleep 20 & done; jobs -p | wc -l"
        checkpoint = await slot.checkpoint()
        async with pool.slot(from_=checkpoint) as fork:
            await slot.restore(checkpoint)
            for each in (slot, fork):
                assert each.isolation.limits["pids"] != "not enforced"
                result = await each.run(many, timeout_s=60)
                assert "fork" in result.stderr or result.exit_code == 126, result
                assert len(await each.processes()) <= 40
                await each.kill_all()
    async with pool_of(slot_limits=Limits(disk_mb=50)) as pool, pool.slot() as slot:
        with pytest.raises(ConfigError, match="disk_mb"):
            await slot.checkpoint()


async def test_limit_of_the_disk_of_checkpoints(pool_of: Factory) -> None:
    options = {"checkpoint_disk_mb": 20, "lease_s": 1.2}
    async with pool_of(**options) as pool, pool.slot() as slot, pool.slot() as other:
        fill = "head -c 12000000 /dev/urandom > big"
        for each in (slot, other):
            await each.run(fill, check=True)
        process = await slot.spawn("while :; do date > now; sleep 0.01; done")
        checkpoint = await slot.checkpoint()
        with anyio.fail_after(20):
            while pool.stats().layers[slot.sandbox].bytes < 12_000_000:  # noqa: ASYNC110 - keepalives have no event
                await anyio.sleep(0.05)
        await slot.run("echo small > more", check=True)
        for policy in get_args(ProcessPolicy)[::2]:
            for each in (slot, other):
                with pytest.raises(OSError, match=r"at most 20\.0 are allowed.*larger checkpoint_disk_mb") as caught:
                    await each.checkpoint(processes=policy)
                assert caught.value.errno == errno.ENOSPC
                assert str(caught.value.filename).endswith("layers")
        assert process.exit_code is None
        assert (await other.run("stat -c %s big")).stdout == "12000000\n"
        await checkpoint.drop()
        async with await other.checkpoint() as second, pool.slot(from_=second) as fork:
            assert (await fork.run("stat -c %s big")).stdout == "12000000\n"
        await until(lambda: pool.stats().layers[slot.sandbox].bytes == 0)


@pytest.mark.whole
async def test_checkpoints_of_any_depth(pool_of: Factory) -> None:
    depth = 310
    async with pool_of() as pool, pool.slot() as slot:
        await slot.run("mkdir d; touch gone; head -c 20000000 /dev/urandom > big; sha256sum big > sum", check=True)
        nodes = [await slot.checkpoint()]
        for number in range(1, depth):
            await slot.restore(nodes[-1])
            change = f"echo {number} > n{number}; echo {number} > last; rm -r gone d; mkdir d gone; touch d/{number}"
            await slot.run(change, check=True)
            nodes.append(await slot.checkpoint(processes="end" if number % 50 == 0 else "keep"))
            assert len(await nodes[-1].sizes()) <= 200
        for number in (depth - 1, 210, 199, 200, 1, 100):
            async with pool.slots(2, from_=nodes[number]) as forks:
                for fork in forks:
                    shown = await fork.run("ls n* | wc -l; cat last; ls d gone; sha256sum -c sum", check=True)
                    assert shown.stdout == f"{number}\n{number}\nd:\n{number}\n\ngone:\nbig: OK\n"
        for node in nodes:
            await node.drop()
        await slot.reset()
        assert await ids_of_layers(pool) == []


async def ids_of_layers(pool: SandboxPool) -> list[str]:
    """Return the layers that are in the store of the pool's sandbox."""
    (sandbox,) = pool._life.running.fleet.sandboxes.values()  # type: ignore[union-attr]
    base = sandbox.channel.facts.raw["base_dir"]
    listing = await anyio.run_process(["docker", "exec", sandbox.id, "ls", f"{base}/layers"])
    return listing.stdout.decode().split()


async def test_code_kernel_ends_with_a_restore_and_says_so(docker_image: Image) -> None:
    image = docker_image("debian")
    async with SandboxPool("docker", image=image, max_sandboxes=1, slots_per_sandbox=2) as pool, pool.slot() as slot:
        options = tools.ToolOptions(code_mode="kernel")
        toolbox = tools.Toolbox(slot, ["code_execution"], options=options)
        assert "3" in str((await toolbox.call("execute_code", {"code": "x = 3; print(x)"})).data["output"])
        checkpoint = await slot.checkpoint()
        await slot.restore(checkpoint)
        result = await toolbox.call("execute_code", {"code": "print('x' in globals())"})
        assert "False" in str(result.data["output"])
        assert "a checkpoint holds no processes" in str(result.data["warning"])


async def test_calls_at_the_same_time(pool_of: Factory) -> None:
    async with pool_of() as pool:
        slot = await pool.acquire()
        await slot.run("echo kept > note", check=True)
        checkpoint = await slot.checkpoint()
        outcomes: list[str] = []

        async def restore() -> None:
            try:
                await slot.restore(checkpoint)
                outcomes.append("restored")
            except SlotClosed:
                outcomes.append("refused")

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(restore)
        assert sorted(outcomes) == ["refused"] * 3 + ["restored"]
        with anyio.move_on_after(0.005):
            await slot.restore(checkpoint)
        with anyio.fail_after(30):
            while (await slot.run("cat note")).stdout != "kept\n":  # noqa: ASYNC110
                await anyio.sleep(0.02)

        await slot.run("for i in $(seq 1500); do echo $i > f$i; done", check=True)

        async def hold() -> None:
            with pytest.raises(SlotClosed):
                while True:
                    await (await slot.checkpoint()).drop()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            await anyio.sleep(0.05)
            await pool.release(slot)
        await until(lambda: pool.stats().checkpoints == 1)
        await checkpoint.drop()
        async with pool.slots(3) as slots:
            for each in slots:
                assert (await each.run("ls")).stdout == ""
        assert pool.stats().slots_quarantined == 0


async def test_closing_the_pool_ends_checkpoints(pool_of: Factory) -> None:
    async with pool_of() as pool:
        slot = await pool.acquire()
        checkpoint = await slot.checkpoint()

        async def hold() -> None:
            with pytest.raises(SlotClosed):
                while True:
                    await slot.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            await anyio.sleep(0.05)
            await pool.aclose()
        await checkpoint.drop()
        with pytest.raises(SlotClosed, match="closed"):
            await pool.acquire(from_=checkpoint)


async def test_sixty_forks_at_once(docker_image: Image) -> None:
    image = docker_image("debian")
    async with SandboxPool("docker", image=image, max_sandboxes=1, slots_per_sandbox=61) as pool, pool.slot() as slot:
        await slot.run("head -c 30000000 /dev/urandom > big; sha256sum big > sum", check=True)
        async with pool.fork(slot, 60) as forks:
            results: list[str] = []

            async def verify(number: int) -> None:
                fork = forks[number]
                checked = await fork.run(f"sha256sum -c sum && echo {number} > own && ls")
                results.append(checked.stdout)

            async with anyio.create_task_group() as tasks:
                for number in range(60):
                    tasks.start_soon(verify, number)
            assert results == ["big: OK\nbig\nown\nsum\n"] * 60
