"""Sandboxes and drivers that end in the middle of a transfer of layers."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import from_thread, to_thread

from hermes_exec import Checkpoint, CheckpointLost, SandboxDied, SandboxPool, Slot
from hermes_exec.archives.checkpoint_file import CheckpointWriter
from hermes_exec.backends.base import ReapFilter
from hermes_exec.backends.capabilities import HostVisible
from hermes_exec.backends.registry import make_backend
from hermes_exec.pool import transfer
from hermes_exec.pool.sandbox import PooledSandbox
from tests.e2e.pool.test_checkpoint_transfer import output, sandbox_of, store_of
from tests.e2e.pool.test_driver_ends import started
from tests.e2e.pool.transferring import FILL, disturb
from tests.support.outside import ends
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio]
Image = Callable[[str], str]
Factory = Callable[..., SandboxPool]
INTACT = "sha256sum -c sum"


@pytest.fixture(
    params=[
        "local",
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("singularity", marks=pytest.mark.singularity),
    ]
)
def pool_of(request: pytest.FixtureRequest, docker_image: Image, singularity_image: Image) -> Factory:
    """Make a pool whose sandboxes have two slots with checkpoints: of directories on `local`, else of own roots."""
    backend = str(request.param)
    if backend == "local":
        return partial(SandboxPool, "local", slots_per_sandbox=2, min_isolation="namespaces")
    image = (docker_image if backend == "docker" else singularity_image)("debian")
    return partial(SandboxPool, backend, image=image, slot_root="own", slots_per_sandbox=2)


async def find_pid(sandbox: PooledSandbox) -> int:
    """Return the pid on this host of the runner of a sandbox."""
    assert isinstance(sandbox.handle, HostVisible)
    pid = await to_thread.run_sync(sandbox.handle.host_pid)
    assert pid is not None
    return pid


async def kill(sandbox: PooledSandbox) -> None:
    """End a sandbox from outside, as the kernel does when memory runs out."""
    os.kill(await find_pid(sandbox), signal.SIGKILL)


async def list_layers(sandbox: PooledSandbox) -> list[str]:
    """Return the names of the layers that are in the store of a living sandbox."""
    store = Path(f"/proc/{await find_pid(sandbox)}/root{sandbox.channel.facts.raw['base_dir']}/layers")
    return os.listdir(store) if await to_thread.run_sync(store.exists) else []


async def has_no_layers(sandbox: PooledSandbox) -> None:
    with anyio.fail_after(20):
        while await list_layers(sandbox):  # noqa: ASYNC110
            await anyio.sleep(0.05)


def on_piece(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[PooledSandbox, PooledSandbox], Awaitable[None]]
) -> list[tuple[str, str]]:
    """Call `act` once with source and target, in the middle of the first transfer. Record all transfers."""
    transfers: list[tuple[str, str]] = []
    copy = transfer.copy_checkpoint
    sources: list[PooledSandbox] = []

    async def copy_and_record(source: PooledSandbox, target: PooledSandbox, *rest: Any) -> tuple[str, ...]:
        transfers.append((source.id, target.id))
        sources.append(source)
        return await copy(source, target, *rest)

    async def act_with_both(target: PooledSandbox) -> None:
        assert await list_layers(target), "nothing has arrived"
        await act(sources[0], target)

    monkeypatch.setattr("hermes_exec.pool.checkpoints.copy_checkpoint", copy_and_record)
    monkeypatch.setattr(transfer, "put_part", disturb(transfer.put_part, act_with_both))
    return transfers


async def kill_source(source: PooledSandbox, _: PooledSandbox) -> None:
    await kill(source)


async def kill_target(_: PooledSandbox, target: PooledSandbox) -> None:
    await kill(target)


async def prepare(slot: Slot) -> Checkpoint:
    await output(slot, FILL)
    return await slot.checkpoint()


def is_unused(pool: SandboxPool, checkpoint: Checkpoint) -> bool:
    return store_of(pool)._stored[checkpoint.id].uses == 0


async def test_end_of_the_only_source_loses_the_checkpoint(pool_of: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_of(max_sandboxes=2) as pool:
        parents = await pool.slots(2).__aenter__()
        checkpoint = await prepare(parents[0])
        async with pool.slot() as there:
            target = sandbox_of(pool, there)
            assert target.id != parents[0].sandbox

            transfers = on_piece(monkeypatch, kill_source)
            with pytest.raises(CheckpointLost, match=rf"its sandbox {parents[0].sandbox} has ended") as caught:
                await pool.acquire(from_=checkpoint)
            assert caught.value.cause == "infra"
            assert transfers == [(parents[0].sandbox, there.sandbox)]
            with pytest.raises(SandboxDied):
                await parents[1].run("true")
            await has_no_layers(target)
            assert is_unused(pool, checkpoint)
            again = await prepare(there)
            async with pool.slots(2, from_=again) as forks:
                for fork in forks:
                    assert await output(fork, INTACT) == "big: OK\n"
            await again.drop()
            await there.reset()
            await checkpoint.drop()
            await has_no_layers(target)
        assert pool.stats().checkpoints == 0
    assert pool.stats().slots_quarantined == 0


async def test_end_of_a_source_is_survived_by_another_copy(pool_of: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_of(max_sandboxes=3) as pool:
        parents = await pool.slots(2).__aenter__()
        checkpoint = await prepare(parents[0])
        async with pool.slots(2, from_=checkpoint) as others, pool.slot() as there:
            assert len({parents[0].sandbox, others[0].sandbox, there.sandbox}) == 3
            target = sandbox_of(pool, there)

            transfers = on_piece(monkeypatch, kill_source)
            async with pool.slot(from_=checkpoint) as fork:
                assert fork.sandbox == there.sandbox
                assert await output(fork, INTACT) == "big: OK\n"
            assert transfers == [(parents[0].sandbox, there.sandbox), (others[0].sandbox, there.sandbox)]
            assert is_unused(pool, checkpoint)
            await checkpoint.drop()
            await has_no_layers(target)
    assert pool.stats().slots_quarantined == 0


async def test_end_of_the_target_is_survived_by_parent_and_fork(
    pool_of: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool_of(max_sandboxes=2) as pool, pool.slots(2) as parents:
        checkpoint = await prepare(parents[0])

        transfers = on_piece(monkeypatch, kill_target)
        async with pool.slot(from_=checkpoint) as fork:
            assert await output(fork, INTACT) == "big: OK\n"
            assert transfers[0][1] != transfers[1][1] == fork.sandbox
        assert await output(parents[0], INTACT) == "big: OK\n"
        assert is_unused(pool, checkpoint)
        await checkpoint.drop()
        await parents[0].reset()
        await has_no_layers(sandbox_of(pool, parents[0]))
    assert pool.stats().slots_quarantined == 0


async def test_restore_in_a_target_that_ends_is_an_infrastructure_failure(
    pool_of: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool_of(max_sandboxes=2) as pool, pool.slots(2) as parents:
        checkpoint = await prepare(parents[0])
        there = await pool.acquire()

        on_piece(monkeypatch, kill_target)
        with pytest.raises(SandboxDied) as caught:
            await there.restore(checkpoint)
        assert caught.value.cause == "infra"
        assert caught.value.sandbox == there.sandbox
        await until(lambda: is_unused(pool, checkpoint))
        async with pool.slot(from_=checkpoint) as fork:
            assert await output(fork, INTACT) == "big: OK\n"
        await checkpoint.drop()


@pytest.mark.parametrize("end", ["target", "source"])
async def test_load_and_save_in_a_sandbox_that_ends_leave_nothing(
    own_root_pool: Factory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str
) -> None:
    path = tmp_path / "x.hxcp"
    async with own_root_pool(slots_per_sandbox=2, max_sandboxes=1) as pool:
        slot = await pool.acquire()
        checkpoint = await prepare(slot)
        await checkpoint.save(path)
        data, sandbox = path.read_bytes(), sandbox_of(pool, slot)
        if end == "target":
            monkeypatch.setattr("hermes_exec.pool.saved.put_part", disturb(transfer.put_part, kill))
            with pytest.raises(SandboxDied) as caught:
                await pool.load(path)
        else:
            write = CheckpointWriter.write

            def write_and_kill(self: CheckpointWriter, piece: bytes) -> None:
                write(self, piece)
                if len(piece) > 100_000:
                    from_thread.run(kill, sandbox)
                    monkeypatch.setattr(CheckpointWriter, "write", write)

            monkeypatch.setattr(CheckpointWriter, "write", write_and_kill)
            with pytest.raises(SandboxDied) as caught:
                await checkpoint.save(path)
        assert (caught.value.cause, caught.value.sandbox) == ("infra", sandbox.id)
        assert os.listdir(tmp_path) == ["x.hxcp"]
        assert path.read_bytes() == data
        await until(lambda: pool.stats().checkpoints == 0)
        loaded = await pool.load(path)
        async with pool.slot(from_=loaded) as fork:
            assert await output(fork, INTACT) == "big: OK\n"
        await loaded.drop()
        await until(lambda: pool.stats().checkpoints == 0)


@pytest.mark.alone
async def test_driver_that_is_killed_in_a_transfer_leaves_nothing(pool_of: partial[SandboxPool]) -> None:
    run_id = f"test-{uuid.uuid4().hex[:8]}"
    backend = pool_of.args[0]
    options = {**pool_of.keywords, "max_sandboxes": 2, "run_id": run_id, "lease_s": 6.0}
    command = [sys.executable, "-m", "tests.e2e.pool.transferring", backend, repr(options)]
    with started(command) as driver:
        assert driver.stdout is not None
        lines = [(await to_thread.run_sync(driver.stdout.readline)).split() for _ in range(2)]
    for pid, *_ in lines:
        await ends(int(pid))
    engine = make_backend(backend, {})
    try:
        await engine.reap(ReapFilter(orphans=True))
        assert [each for each in await engine.sandboxes() if each.labels.run_id == run_id] == []
    finally:
        await engine.aclose()
    for _, *directories in lines:
        assert not any(map(os.path.exists, directories))
