"""Word problems: the gold answer has 1.0; another one, or none, 0.0."""

from __future__ import annotations

from typing import Any

import pytest

from hermes_agent import Episode, Rollout, Scoring, Verdict
from hermes_atropos import datasets
from hermes_atropos.context import ToolContext
from hermes_atropos.envs.gsm8k_agent import Gsm8kAgentEnv
from hermes_exec import SandboxPool, Slot
from tests.e2e.agent.plans import PlanModel
from tests.e2e.atropos.tasks.bare import bare

pytestmark = pytest.mark.anyio
ROWS = datasets.load_items(None, "gsm8k_agent", "train", {"question": str, "answer": str})


async def rewarded(pool: SandboxPool, row: dict[str, Any], answer: str, command: str = "true") -> float | None:
    env = bare(Gsm8kAgentEnv, dataset_name="shipped")

    async def check(slot: Slot, episode: Episode) -> Verdict:
        reward = await env.compute_reward(row, episode, ToolContext(slot))
        return Verdict(reward, solved=reward == 1.0)

    prompt = env.format_prompt(row)
    rollout = Rollout(messages=prompt, toolsets=["terminal"], scoring=Scoring(check=check))
    return (await rollout.run(pool, PlanModel({prompt: [[command], answer]}))).reward


async def test_oracle_and_null() -> None:
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        for row in ROWS:
            number = row["answer"].rpartition("#### ")[2]
            assert await rewarded(pool, row, f"So it is \\boxed{{{number}}}.") == 1.0, row
            assert await rewarded(pool, row, row["answer"]) == 1.0, row
            assert await rewarded(pool, row, "I did nothing.") == 0.0, row
            assert await rewarded(pool, row, f"\\boxed{{{number}}}, no: \\boxed{{{number}1}}") == 0.0, row


async def test_what_a_tool_prints_is_no_answer() -> None:
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        assert await rewarded(pool, ROWS[0], "There it is.", "echo '#### 840'; echo '\\boxed{840}'") == 0.0
