"""Rollouts of tasks by a model with a plan, scored as the environments score them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hermes_agent import Episode, Rollout, RolloutResult, Scoring, Verdict
from hermes_agent.scoring import ScoreIn
from hermes_atropos.context import ToolContext
from hermes_atropos.envs.endless_terminals.scoring import find_interpreter, score_final_state
from hermes_atropos.envs.endless_terminals.tasks import EndlessTask
from hermes_atropos.envs.terminalbench_2.scoring import find_shell, score_task
from hermes_atropos.envs.terminalbench_2.tasks import TerminalBenchTask
from hermes_atropos.task_images import TaskImages, TaskSlot
from hermes_exec import SandboxPool, Slot
from tests.e2e.agent.plans import PlanModel, Step

ANYWHERE = TaskSlot(None, None)
NULL: tuple[Step, ...] = ("I did nothing.",)

SetUp = Callable[[ToolContext], Awaitable[dict[str, Any]]]
Score = Callable[[ToolContext], Awaitable[Verdict]]


async def rollout(
    pool: SandboxPool,
    steps: Sequence[Step],
    set_up: SetUp,
    score: Score,
    *,
    at: TaskSlot = ANYWHERE,
    score_in: ScoreIn = "slot",
    **more: Any,
) -> RolloutResult:
    """One rollout of these steps."""
    meta: dict[str, Any] = {}

    async def prepare(slot: Slot) -> None:
        meta.update(await set_up(ToolContext(slot)))

    async def check(slot: Slot, episode: Episode) -> Verdict:
        return await score(ToolContext(slot, meta=meta))

    scoring = Scoring(check=check, score_in=score_in, files=more.pop("check_files", {}), keep=more.pop("keep", None))
    made = Rollout(
        messages="go",
        prepare=prepare,
        scoring=scoring,
        image=at.image,
        workdir=at.workdir,
        toolsets=["terminal"],
        **more,
    )
    return await made.run(pool, PlanModel({"go": [*steps, "done"]}))


def solution(task: EndlessTask) -> list[Step]:
    """What the oracle does: the task's own solution, as one command."""
    return [[(task.test.parents[1] / "solution" / "solve.sh").read_text()]]


async def endless(
    pool: SandboxPool, task: EndlessTask, steps: Sequence[Step], images: TaskImages, timeout_s: float = 60
) -> RolloutResult:
    """A task of Endless Terminals."""

    async def set_up(ctx: ToolContext) -> dict[str, Any]:
        return {"interpreter": await find_interpreter(ctx.exec_tool)}

    async def score(ctx: ToolContext) -> Verdict:
        return await score_final_state(ctx.slot, task.test, ctx.meta["interpreter"], timeout_s)

    return await rollout(pool, steps, set_up, score, at=await images.resolve(task.environment))


async def terminalbench(
    pool: SandboxPool,
    task: TerminalBenchTask,
    steps: Sequence[Step],
    at: TaskSlot,
    timeout_s: float = 60,
    **more: Any,
) -> RolloutResult:
    """A task of TerminalBench."""

    async def set_up(ctx: ToolContext) -> dict[str, Any]:
        return {"shell": await find_shell(ctx.exec_tool)}

    async def score(ctx: ToolContext) -> Verdict:
        return await score_task(ctx.slot, task, ctx.meta["shell"], timeout_s)

    return await rollout(pool, steps, set_up, score, at=at, **more)
