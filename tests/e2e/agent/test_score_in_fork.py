"""Scores in a fork: a check changes nothing in the slot, and an outage is no reward."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from hermes_agent import CheckFailed, CommandCheck, Episode, Rollout, Scoring, Verdict, score
from hermes_exec import ConfigError, ErrorCause, HostDiskFull, Limits, SandboxDied, SandboxPool, Slot, SlotClosed
from tests.e2e.agent.plans import PlanModel
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
Image = Callable[[str], str]
WORK = "echo work > answer; echo machine > /etc/state; mkdir -p ~/bin; (sleep 1000 >/dev/null 2>&1 &)"
MANY = "for i in $(seq 2500); do echo $i > f$i; done"
STATE = "cat answer /etc/state; ls; ls /etc/marked /etc/checked 2>/dev/null"


@pytest.fixture
async def pool(anyio_backend: str, docker_image: Image) -> AsyncIterator[SandboxPool]:
    """A pool with one slot only: what needs another one waits in vain."""
    image = docker_image("debian")
    async with SandboxPool("docker", image=image, max_sandboxes=1, slot_root="own", acquire_timeout_s=20) as made:
        yield made


def checked(command: str, **more: Any) -> Scoring:
    return Scoring(check=CommandCheck(command, more.pop("timeout_s", 60)), score_in="fork", **more)


def model(*commands: str) -> PlanModel:
    return PlanModel({"go": [list(commands), "done"]})


async def state(slot: Slot) -> str:
    return (await slot.run(STATE)).stdout


@pytest.mark.parametrize("more", ["true", MANY], ids=["copy", "freeze"])
async def test_each_check_starts_from_the_state_that_the_model_left(pool: SandboxPool, more: str) -> None:
    async with pool.slot() as slot:
        result = await Rollout(messages="go").run_in(slot, model(WORK, more))
        assert result.episode is not None
        before = await state(slot)
        changes = f"rm -rf answer f* ~/bin; echo other > /etc/state; touch /etc/marked; {MANY}; "
        for number, wanted in enumerate(("work", "nothing", "work")):
            command = f"[ -d ~/bin ] && cat hidden-{number} && grep -qx {wanted} answer; code=$?; {changes} exit $code"
            scoring = checked(command, files={f"hidden-{number}": "secret\n", "answers/all": "secret\n"})
            verdict, killed = await score(slot, result.episode, scoring)
            assert (verdict.solved, verdict.output) == (wanted == "work", "secret\n"), verdict
            assert killed is not None
            assert (killed.found > 0, killed.left) == (number == 0, 0), "the model's processes have ended before"
            assert await state(slot) == before
        assert pool.stats().checkpoints == 0
        await slot.run("echo more >> answer", check=True)
        again = await Rollout(messages="go", scoring=checked("grep -qx more answer")).run_in(slot, model("true"))
        assert (again.reward, again.trainable) == (1.0, True), "the next episode continues from this state"


async def test_rollouts_of_a_pool_are_scored(pool: SandboxPool) -> None:
    rollout = Rollout(messages="go", scoring=checked("grep -q machine /etc/state && touch /etc/checked"))
    good = await rollout.run(pool, model(WORK))
    assert (good.reward, good.solved, good.cause) == (1.0, True, ErrorCause.POLICY)
    assert good.killed is not None
    assert (good.killed.found > 0, good.killed.left) == (True, 0)
    bad = await rollout.run(pool, model("true"))
    assert (bad.reward, bad.trainable, bad.cause) == (0.0, True, ErrorCause.POLICY)


async def test_check_without_a_verdict_leaves_the_slot_as_it_was(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        result = await Rollout(messages="go", scoring=checked("rm answer; sleep 60", timeout_s=1)).run_in(
            slot, model(WORK)
        )
        assert (result.reward, result.trainable, result.cause) == (None, False, ErrorCause.INFRA)
        assert isinstance(result.exception, CheckFailed)
        assert (await state(slot)).startswith("work\nmachine\n")
        assert result.episode is not None
        with anyio.move_on_after(1) as cancelled:
            await score(slot, result.episode, checked("rm answer; sleep 60"))
        assert cancelled.cancelled_caught
        assert (await state(slot)).startswith("work\nmachine\n")
        assert await slot.processes() == []


async def test_sandbox_that_ends_during_a_check_is_no_reward_and_after_it_no_loss(pool: SandboxPool) -> None:
    def end_sandbox(slot: Slot) -> None:
        subprocess.run(["docker", "kill", slot.sandbox], check=True, capture_output=True)

    async def die_first(slot: Slot, _: Episode) -> Verdict:
        await anyio.to_thread.run_sync(end_sandbox, slot)
        result = await slot.run("true")
        return Verdict(float(result.ok), result.ok)

    async def die_last(slot: Slot, _: Episode) -> Verdict:
        result = await slot.run("grep -q work answer")
        await anyio.to_thread.run_sync(end_sandbox, slot)
        return Verdict(float(result.ok), result.ok)

    lost = await Rollout(messages="go", scoring=Scoring(check=die_first, score_in="fork")).run(pool, model(WORK))
    assert (lost.reward, lost.trainable, lost.cause) == (None, False, ErrorCause.INFRA)
    async with pool.slot() as slot:
        rollout = Rollout(messages="go", scoring=Scoring(check=die_last, score_in="fork"))
        final = await rollout.run_in(slot, model(WORK))
        assert (final.reward, final.trainable) == (1.0, True)
        assert final.episode is not None
        with pytest.raises((SandboxDied, SlotClosed)):
            await score(slot, final.episode, checked("true"))


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({}, "set slot_root='own'"),
        ({"slots_per_sandbox": 2, "slot_root": "shared"}, "set slot_root='own'"),
        ({"slots_per_sandbox": 2, "slot_limits": Limits(disk_mb=64)}, "leave out slot_limits.disk_mb"),
    ],
)
async def test_slots_without_checkpoints_are_refused_before_the_model_works(
    docker_image: Image, options: dict[str, Any], advice: str
) -> None:
    turns: list[int] = []
    watched = PlanModel({"go": ["done"]}, lambda _, turn: turns.append(turn))
    rollout = Rollout(messages="go", scoring=checked("true"))
    async with SandboxPool("docker", image=docker_image("debian"), **options) as pool:
        with pytest.raises(ConfigError, match=advice):
            pool.check_checkpoints()
        result = await rollout.run(pool, watched)
        assert pool.stats().launches == 0, "nothing was started"
        async with pool.slot() as slot:
            in_slot = await rollout.run_in(slot, watched)
    for refused in (result, in_slot):
        assert (refused.reward, refused.cause) == (None, ErrorCause.CONFIG)
        assert refused.error is not None
        assert advice in refused.error.message
    assert turns == []


def test_blocking_pool_is_checked_too(docker_image: Image) -> None:
    image = docker_image("debian")
    with SandboxPool("docker", image=image) as whole, pytest.raises(ConfigError, match="slot_root='own'"):
        whole.check_checkpoints()
    with SandboxPool("docker", image=image, slots_per_sandbox=2) as pool, pool.slot() as slot:
        pool.check_checkpoints()
        result = Rollout(messages="go", scoring=checked("grep -q work answer && rm answer")).run_in(slot, model(WORK))
        assert result.reward == 1.0
        assert slot.run("cat answer").stdout == "work\n"


async def test_released_slot_is_not_scored(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        result = await Rollout(messages="go").run_in(slot, model("true"))
    assert result.episode is not None
    with pytest.raises(SlotClosed):
        await score(slot, result.episode, checked("true"))


@pytest.mark.parametrize(("command", "reward"), [("grep -q work answer", 1.0), ("grep -q other answer", 0.0)])
async def test_work_beyond_the_limit_of_checkpoints_is_scored(docker_image: Image, command: str, reward: float) -> None:
    options: dict[str, Any] = {"image": docker_image("debian"), "slots_per_sandbox": 2, "checkpoint_disk_mb": 8}
    large = f"{WORK}; head -c 30000000 /dev/urandom > large"
    async with SandboxPool("docker", max_sandboxes=1, **options) as pool, pool.slot() as slot:
        result = await Rollout(messages="go", scoring=checked(command)).run_in(slot, model(large))
        assert (result.reward, result.trainable, result.cause) == (reward, True, ErrorCause.POLICY)
        await slot.run("touch more", check=True)
        with pytest.raises(OSError, match="larger checkpoint_disk_mb"):
            await slot.checkpoint()
        await slot.reset()
        await until(lambda: not any(map(any, pool.stats().layers.values())), 20)


@pytest.mark.parametrize("who", ["the model", "another slot"])
async def test_full_disk_is_reward_0_for_the_model_that_filled_it(docker_image: Image, who: str) -> None:
    disk = {"/hermes-exec/state/base": "size=64m,nr_inodes=4000,mode=711"}
    image, fill = docker_image("debian"), "i=0; while : > f$i; do i=$((i + 1)); done 2>/dev/null"
    async with (
        SandboxPool("docker", image=image, max_sandboxes=1, slots_per_sandbox=2, tmpfs=disk) as pool,
        pool.slots(2) as (slot, other),
    ):
        await slot.run("true", check=True)
        if who == "another slot":
            await other.run(fill)
        rollout = Rollout(messages="go", scoring=checked("true"))
        result = await rollout.run_in(slot, model(fill if who == "the model" else "true"))
        if who == "the model":
            assert (result.reward, result.trainable, result.cause) == (0.0, True, ErrorCause.POLICY)
        else:
            assert (result.reward, result.trainable, result.cause) == (None, False, ErrorCause.INFRA)
            assert isinstance(result.exception, HostDiskFull)
        assert pool.stats().checkpoints == 0
