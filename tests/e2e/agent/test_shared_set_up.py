"""Rollouts that share a set-up: one slot is set up, and each runs in a fork of it, with the results as without."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

from hermes_agent import CommandCheck, Completion, Rollout, RolloutResult, Scoring, SharedSetUp
from hermes_exec import ErrorCause, SandboxPool, Slot
from tests.e2e.agent.plans import PlanModel, Step

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
Image = Callable[[str], str]
Factory = Callable[..., SandboxPool]
PLAN: dict[str, list[Step]] = {
    "go": [["cat given data > work; echo $FROM_SET_UP >> work; echo spoilt > /etc/tool"], "done"]
}
WORK = PlanModel(PLAN)
CHECK = "printf 'given\\ndata\\nvariable\\n' | cmp - work && cat /etc/tool && wc -l < set-ups"


@pytest.fixture
def pool_of(docker_image: Image) -> Factory:
    return partial(SandboxPool, "docker", image=docker_image("debian"), max_sandboxes=1)


class SetUp:
    """A set-up that counts itself, and leaves a process on request."""

    def __init__(self, *, process: bool = False) -> None:
        self.count, self._process = 0, process
        self.failures: list[Exception] = []

    async def __call__(self, slot: Slot) -> None:
        self.count += 1
        if self.failures:
            raise self.failures.pop()
        await slot.run("echo data > data; echo tool > /etc/tool; echo x >> set-ups", check=True)
        slot.extra_env = {"FROM_SET_UP": "variable"}
        if self._process:
            await slot.spawn("sleep 1000")


def rollout(set_up: SetUp, shared: SharedSetUp | None, **more: Any) -> Rollout:
    scoring = Scoring(check=CommandCheck(CHECK), keep=["work"])
    return Rollout(messages="go", files={"given": "given\n"}, prepare=set_up, scoring=scoring, shared=shared, **more)


async def run_all(pool: SandboxPool, each: Rollout, count: int, model: PlanModel = WORK) -> list[RolloutResult]:
    results: list[RolloutResult] = []

    async def run() -> None:
        results.append(await each.run(pool, model))

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(run)
    return results


async def test_rollouts_run_in_forks_of_one_set_up(pool_of: Factory) -> None:
    async with pool_of(slots_per_sandbox=3) as pool:
        set_up, shared = SetUp(), SharedSetUp(required=True)
        results = await run_all(pool, rollout(set_up, shared), 7)
        assert [(result.reward, result.verdict and result.verdict.output) for result in results] == [
            (1.0, "tool\n1\n")
        ] * 7
        assert set_up.count == 1, "neither a fork nor a sealed slot is set up again"
        assert pool.stats().checkpoints == 1
        await shared.drop()
        assert pool.stats().checkpoints == 0
        again = await rollout(set_up, shared).run(pool, WORK)
        assert (again.reward, set_up.count) == (1.0, 2)
        await shared.drop()
        async with pool.slots(3) as slots:
            for slot in slots:
                assert (await slot.run("ls; cat /etc/tool")).stdout == ""


async def test_forks_of_a_set_up_run_in_other_sandboxes_too(docker_image: Image) -> None:
    all_began = anyio.Event()

    class Together(PlanModel):
        """Answers when four rollouts have their slots."""

        began = 0

        async def complete(self, *args: Any, **sampling: Any) -> Completion:
            self.began += 1
            if self.began == 4:
                all_began.set()
            await all_began.wait()
            return await super().complete(*args, **sampling)

    image = docker_image("debian")
    async with SandboxPool("docker", image=image, max_sandboxes=2, slots_per_sandbox=2) as pool:
        set_up = SetUp()
        results = await run_all(pool, rollout(set_up, SharedSetUp(required=True)), 4, Together(PLAN))
        assert [result.reward for result in results] == [1.0] * 4
        assert len({result.sandbox for result in results}) == 2
        assert set_up.count == 1


@pytest.mark.parametrize(
    ("options", "process"),
    [({"slots_per_sandbox": 1}, False), ({"slots_per_sandbox": 3}, True)],
    ids=["no checkpoints", "a process"],
)
async def test_each_rollout_sets_up_its_slot_where_forks_are_impossible(
    pool_of: Factory, options: dict[str, Any], process: bool
) -> None:
    async with pool_of(**options) as pool:
        set_up = SetUp(process=process)
        results = await run_all(pool, rollout(set_up, SharedSetUp()), 3)
        assert [result.reward for result in results] == [1.0] * 3
        assert set_up.count == 2 * 3, "each slot, and each clean slot of a check"
        required = await rollout(set_up, SharedSetUp(required=True)).run(pool, WORK)
        assert (required.reward, required.cause) == (None, ErrorCause.CONFIG)
        assert required.error is not None
        assert ("leaves a process running" if process else "slot_root='own'") in required.error.message
        assert pool.stats().checkpoints == 0


async def test_set_up_is_repeated_when_its_sandbox_has_ended(pool_of: Factory) -> None:
    async with pool_of(slots_per_sandbox=2) as pool:
        set_up, shared = SetUp(), SharedSetUp()
        first = await rollout(set_up, shared).run(pool, WORK)
        await anyio.run_process(["docker", "kill", first.sandbox])
        second = await rollout(set_up, shared).run(pool, WORK)
        assert (first.reward, second.reward, set_up.count) == (1.0, 1.0, 2)
        assert second.sandbox != first.sandbox


@pytest.mark.parametrize("shared", [SharedSetUp(), None], ids=["shared", "own"])
async def test_failed_set_up_is_the_result_of_its_rollout_only(pool_of: Factory, shared: SharedSetUp | None) -> None:
    async with pool_of(slots_per_sandbox=2) as pool:
        set_up = SetUp()
        set_up.failures = [OSError("no such data")]
        failed = await rollout(set_up, shared).run(pool, WORK)
        assert (failed.reward, failed.cause, failed.episode) == (None, ErrorCause.TASK, None)
        assert failed.error is not None
        assert failed.error.message == "no such data"
        assert (await rollout(set_up, shared).run(pool, WORK)).reward == 1.0
        lost = await rollout(set_up, shared, cwd="/missing").run(pool, WORK)
        assert (lost.reward, lost.cause) == (None, ErrorCause.TASK)


async def test_cancelled_set_up_is_left_to_the_next_rollout(pool_of: Factory) -> None:
    async with pool_of(slots_per_sandbox=2) as pool:
        began = anyio.Event()

        class Slow(SetUp):
            async def __call__(self, slot: Slot) -> None:
                await super().__call__(slot)
                if self.count == 1:
                    began.set()
                    await anyio.sleep_forever()

        set_up = Slow()
        each = rollout(set_up, SharedSetUp(required=True))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_all, pool, each, 1)
            await began.wait()
            tasks.cancel_scope.cancel()
        assert ((await each.run(pool, WORK)).reward, set_up.count) == (1.0, 2)
