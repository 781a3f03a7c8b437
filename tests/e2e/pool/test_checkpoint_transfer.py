"""Checkpoints leave their sandbox: forks and restores in other ones, hand-overs, and copies that are left."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_exec import CheckpointLost, ConfigError, ExecError, Limits, ProfileConfig, SandboxPool, Slot, SlotClosed
from hermes_exec.pool import hand_over, transfer
from hermes_exec.pool.checkpoints import Checkpoints, StoredCheckpoint
from hermes_exec.pool.sandbox import PooledSandbox
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio]
Image = Callable[[str], str]
Factory = Callable[..., SandboxPool]
CHANGE = (
    "echo one > note; ln note other; mkdir -p d /opt/x; mkfifo pipe; truncate -s 1000000 hole; echo data >> hole; "
    "rm /etc/issue; rm -r /usr/share/doc; mkdir /usr/share/doc; chmod 4755 /opt/x; ln -s /nowhere link; "
    "touch -d 1960-01-01 old; touch -d 2001-01-01 /tmp /var/tmp; "
    "rm -r /var/cache; echo x > /var/cache; chown 7:8 note; head -c 5000000 /dev/urandom > big"
)
BY_ENGINE = "-not -path '/etc/host*' -not -path '/etc/resolv*' -not -path '/.dockerenv' -not -path /etc/mtab"
ROOT = (
    f"find / -xdev -not -path '/proc*' -not -path '/sys*' -not -path '/dev*' {BY_ENGINE} "
    "-printf '%p %y %m %u %g %n %T@ %l %b\\n' | sort; "
    f"find /workspace /opt /etc /tmp -xdev -type f {BY_ENGINE} -exec sha256sum {{}} + | sort"
)
"""Everything in the root; the engine writes names of hosts into each sandbox anew."""


@pytest.fixture
def pool_of(own_root_pool: Factory) -> Factory:
    return partial(own_root_pool, max_sandboxes=2, slots_per_sandbox=2)


async def output(slot: Slot, command: str, **options: Any) -> str:
    result = await slot.run(command, **options)
    assert result.ok, result
    return result.stdout


def store_of(pool: SandboxPool) -> Checkpoints:
    running = pool._life.running
    assert running is not None
    return running.checkpoints


def sandbox_of(pool: SandboxPool, slot: Slot) -> PooledSandbox:
    running = pool._life.running
    assert running is not None
    return running.releases.held[slot.id].sandbox


def count_transfers(pool: SandboxPool, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the sandbox of each transfer."""
    store, targets = store_of(pool), []
    copy = Checkpoints._copy

    async def counted(self: Checkpoints, checkpoint_id: str, stored: StoredCheckpoint, target: PooledSandbox) -> None:
        targets.append(target.id)
        await copy(self, checkpoint_id, stored, target)

    monkeypatch.setattr(Checkpoints, "_copy", counted)
    assert store is not None
    return targets


async def test_root_is_equal_in_another_sandbox(pool_of: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_of(max_sandboxes=3) as pool, pool.slot() as slot:
        session = slot.session()
        await session.run("mkdir -p deep; cd deep; export Y=y; f() { echo f$X$Y; }; X=1; umask 027")
        await output(slot, CHANGE)
        first = await slot.checkpoint()
        await output(slot, "rm -r d; mkdir d; echo two > d/two; mv other /opt/; rm /opt/x -r")
        checkpoint = await slot.checkpoint()
        await slot.restore(checkpoint)
        before = await output(slot, ROOT)
        targets = count_transfers(pool, monkeypatch)
        async with pool.slots(5, from_=checkpoint) as forks:
            assert len({fork.sandbox for fork in forks}) == 3
            assert sorted(targets) == sorted({fork.sandbox for fork in forks} - {slot.sandbox})
            for fork in forks:
                assert (await output(fork, ROOT)).splitlines() == before.splitlines()
                assert (await fork.session(like=session).run("f; pwd; umask")).stdout == "f1y\n/workspace/deep\n0027\n"
            there = next(fork for fork in forks if fork.sandbox != slot.sandbox)
            await output(there, "echo branch > branch")
            async with await there.checkpoint() as nested:
                await slot.restore(nested)  # back to the first sandbox, with its own layer alone
                assert await output(slot, "cat branch d/two") == "branch\ntwo\n"
                assert len(await nested.sizes()) == len(await checkpoint.sizes()) + 1
            await there.restore(first)
            assert await output(there, "ls -A d; cat note other") == "one\none\n"
            await there.reset()
            assert await output(there, ROOT) == before
        assert len(targets) == 4
        for each in (first, checkpoint):
            await each.drop()
        with pytest.raises(SlotClosed, match="dropped"):
            await pool.acquire(from_=checkpoint)
    assert pool.stats().slots_quarantined == 0


async def test_two_waiters_cause_one_transfer(pool_of: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_of(slots_per_sandbox=4) as pool, pool.slots(4) as slots:
        await output(slots[0], "head -c 30000000 /dev/urandom > big; sha256sum big > sum")
        checkpoint = await slots[0].checkpoint()
        targets = count_transfers(pool, monkeypatch)

        async def fork() -> None:
            async with pool.slot(from_=checkpoint) as made:
                assert made.sandbox != slots[0].sandbox
                assert await output(made, "sha256sum -c sum") == "big: OK\n"

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(fork)
        assert len(targets) == 1


async def test_checkpoint_lives_on_in_a_copy(pool_of: Factory) -> None:
    async with pool_of(idle_timeout_s=0.5) as pool:
        slot = await pool.acquire()
        await output(slot, "echo kept > note")
        checkpoint = await slot.checkpoint()
        forks = await pool.slots(2, from_=checkpoint).__aenter__()
        there = next(fork for fork in forks if fork.sandbox != slot.sandbox)
        assert pool.stats().checkpoints == 1
        await sandbox_of(pool, slot).handle.destroy()
        for fork in forks:
            if fork is not there:
                await pool.release(fork)
        await pool.release(there)
        await until(lambda: pool.stats().sandboxes["ready"] == 1)
        await anyio.sleep(1.5)  # its new keeper stays though it is idle
        async with pool.slot(from_=checkpoint) as fork:
            assert await output(fork, "cat note") == "kept\n"
            assert fork.sandbox == there.sandbox
            await sandbox_of(pool, fork).handle.destroy()
            with pytest.raises(CheckpointLost):
                await pool.acquire(from_=checkpoint)
        await checkpoint.drop()


async def test_checkpoint_is_handed_over_before_its_sandbox_ends(pool_of: Factory) -> None:
    async with pool_of(max_lifetime_s=3.0) as pool:
        async with pool.slot() as slot:
            await output(slot, "echo kept > note")
            checkpoint = await slot.checkpoint()
        sandboxes = set()
        for _ in range(3):
            async with pool.slot(from_=checkpoint) as fork:
                sandboxes.add(fork.sandbox)
                assert await output(fork, "cat note") == "kept\n"
            await anyio.sleep(3.5)
        assert len(sandboxes) > 1
        await checkpoint.drop()
        await until(lambda: pool.stats().sandboxes["ready"] <= 1)


@pytest.mark.docker
async def test_hand_over_to_a_changed_image_launches_one_sandbox(
    docker_image: Image, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"hermes-exec-test/{uuid.uuid4().hex[:12]}:1"
    monkeypatch.setattr(hand_over, "PAUSES_S", (0.2, 0.4))
    options: dict[str, Any] = {"max_sandboxes": 4, "slots_per_sandbox": 2, "slot_root": "own", "max_lifetime_s": 3.0}
    await anyio.run_process(["docker", "tag", docker_image("debian"), name])
    try:
        async with SandboxPool("docker", image=name, **options) as pool, pool.slot() as slot:
            checkpoint = await slot.checkpoint()
            await anyio.run_process(["docker", "tag", docker_image("busybox"), name])
            with anyio.fail_after(60):
                while caplog.text.count("has changed since its sandbox was launched") < 5:  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            assert pool.stats().launches == 2
            async with pool.slot(from_=checkpoint) as fork:
                assert fork.sandbox == slot.sandbox
            await checkpoint.drop()
    finally:
        await anyio.run_process(["docker", "rmi", name])


async def test_checkpoint_that_cannot_be_copied_holds_back_no_other_hand_over(
    pool_of: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_over, "PAUSES_S", (0.2, 0.4))
    async with pool_of(max_lifetime_s=4.0) as pool:
        async with pool.slot() as slot:
            await output(slot, "i=0; while [ $i -lt 600 ]; do mkdir d; cd d; i=$((i + 1)); done")
            deep = await slot.checkpoint()
            await slot.reset()
            await output(slot, "echo kept > note")
            checkpoint = await slot.checkpoint()
            keepers = [next(iter(store_of(pool).find(each).copies)) for each in (deep, checkpoint)]
            assert keepers[0] == keepers[1] == sandbox_of(pool, slot).record.id
        await until(lambda: next(iter(store_of(pool).find(checkpoint).copies)) != keepers[0])
        assert next(iter(store_of(pool).find(deep).copies)) == keepers[0]
        await deep.drop()
        async with pool.slot(from_=checkpoint) as fork:
            assert await output(fork, "cat note") == "kept\n"


async def test_old_sandbox_without_room_for_another_serves_everybody(pool_of: Factory, tmp_path: Path) -> None:
    async with pool_of(max_sandboxes=1, max_lifetime_s=1.0, acquire_timeout_s=20.0) as pool:
        async with pool.slot() as slot:
            await output(slot, "echo kept > note")
            checkpoint = await slot.checkpoint()
            await checkpoint.save(tmp_path / "x.hxcp")
        await anyio.sleep(1.5)  # the age of the sandbox is the case
        async with pool.slot() as ordinary, pool.slot(from_=checkpoint) as fork:
            assert ordinary.sandbox == fork.sandbox == slot.sandbox
            assert await output(ordinary, "ls") == ""
            assert await output(fork, "cat note") == "kept\n"
            loaded = await pool.load(tmp_path / "x.hxcp")
        for each in (checkpoint, loaded):
            await each.drop()
        async with pool.slot() as later:
            assert later.sandbox != slot.sandbox


async def test_transfer_ends_with_its_cause(pool_of: Factory) -> None:
    """A request that is cancelled or whose checkpoint is dropped leaves no layers in the other sandbox."""
    async with pool_of() as pool, pool.slots(2) as slots:
        await output(slots[0], "for i in $(seq 3000); do echo $i > f$i; done; head -c 100000000 /dev/urandom > big")
        async with pool.slot() as there:
            target = sandbox_of(pool, there)
            for cause in ("cancel", "drop"):
                checkpoint = await slots[0].checkpoint()
                async with anyio.create_task_group() as tasks:

                    async def fork() -> None:
                        with pytest.raises(SlotClosed, match="dropped"):
                            await pool.acquire(from_=checkpoint)  # noqa: B023

                    tasks.start_soon(fork)
                    await until(lambda: target.arriving.locked())
                    await anyio.sleep(0.05)
                    if cause == "drop":
                        await checkpoint.drop()
                    else:
                        tasks.cancel_scope.cancel()
                await checkpoint.drop()
                assert await output(there, "echo lives") == "lives\n"
                assert store_of(pool)._known_layers(target) == {}
    assert pool.stats().slots_quarantined == 0


@pytest.mark.docker
async def test_drop_at_the_end_of_a_transfer_leaves_no_copy(
    docker_image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = docker_image("debian")
    options: dict[str, Any] = {"max_sandboxes": 2, "slots_per_sandbox": 2, "slot_root": "own"}
    async with SandboxPool("docker", image=image, **options) as pool, pool.slots(2) as slots, pool.slot() as there:
        await output(slots[0], "echo a > a")
        checkpoint, target = await slots[0].checkpoint(), sandbox_of(pool, there)
        complete = transfer.complete

        async with anyio.create_task_group() as tasks:

            async def complete_and_drop(*args: Any) -> tuple[str, ...]:
                layers = await complete(*args)
                tasks.start_soon(checkpoint.drop)
                await until(lambda: checkpoint.dropped)
                await anyio.wait_all_tasks_blocked()
                return layers

            monkeypatch.setattr(transfer, "complete", complete_and_drop)
            with pytest.raises(SlotClosed, match="dropped"):
                await pool.acquire(from_=checkpoint)
        directory = f"{target.channel.facts.raw['base_dir']}/layers"
        with anyio.fail_after(20):
            while (await anyio.run_process(["docker", "exec", target.id, "ls", directory])).stdout:  # noqa: ASYNC110
                await anyio.sleep(0.05)


@pytest.mark.docker
async def test_source_that_answers_wrongly_fails_the_request(
    docker_image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = docker_image("debian")
    options: dict[str, Any] = {"max_sandboxes": 2, "slots_per_sandbox": 2, "slot_root": "own"}
    async with SandboxPool("docker", image=image, **options) as pool, pool.slots(2) as slots:
        await output(slots[0], "echo a > a")
        checkpoint = await slots[0].checkpoint()
        answers, read = [], transfer.read_contents

        async def read_too_many(*args: Any, **options: Any) -> transfer.CheckpointContents:
            contents = await read(*args, **options)
            answers.append(contents)
            return replace(contents, layers=contents.layers * 2)

        monkeypatch.setattr(transfer, "read_contents", read_too_many)
        with pytest.raises(ExecError, match="cannot be copied: no sandbox with it answers as it should") as raised:
            await pool.acquire(from_=checkpoint)
        assert raised.value.retryable
        assert len(answers) == 1
        monkeypatch.setattr(transfer, "read_contents", read)
        async with pool.slot(from_=checkpoint) as fork:
            assert await output(fork, "cat a") == "a\n"
            assert fork.sandbox != slots[0].sandbox


async def test_other_images_and_setups_are_refused(pool_of: Factory) -> None:
    async with pool_of(max_sandboxes=3) as pool, pool.slot() as slot:
        checkpoint = await slot.checkpoint()
        with pytest.raises(ConfigError, match="leave out profile= and image="):
            await pool.acquire(ProfileConfig(setup="touch /prepared"), from_=checkpoint)
        async with pool.slot(ProfileConfig(setup="touch /prepared")) as other:
            with pytest.raises(ConfigError, match="use a slot with the same `setup`"):
                await other.restore(checkpoint)
            assert await output(other, "ls -d /prepared") == "/prepared\n"
        async with pool.slot(ProfileConfig(slot_limits=Limits(pids=50)), from_=checkpoint) as other:
            assert other.sandbox != slot.sandbox
        store_of(pool).find(checkpoint).image_id = "sha256:another"
        with pytest.raises(ConfigError, match="has changed since the checkpoint was made"):
            async with pool.slots(3, from_=checkpoint):
                pass
        assert await output(slot, "echo lives") == "lives\n"
