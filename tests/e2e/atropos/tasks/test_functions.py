"""Functions to write: the canonical solution has 1.0, doing nothing 0.0, and a cheat no more than a wrong answer."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from hermes_agent import Episode, Rollout, RolloutResult, Scoring, Verdict
from hermes_atropos import datasets
from hermes_atropos.context import ToolContext
from hermes_atropos.envs.hermes_swe import WORK, HermesSweEnv
from hermes_exec import SandboxPool, Slot
from tests.e2e.agent.plans import PlanModel
from tests.e2e.atropos.tasks.bare import bare

pytestmark = pytest.mark.anyio
ROWS = datasets.load_items(None, "hermes_swe", "test", {"canonical_solution": str})


async def worked(row: dict[str, Any], *commands: str, **options: Any) -> RolloutResult:
    env = bare(HermesSweEnv, dataset_name="shipped", **options)
    spec = env.sandbox_spec(row)

    async def check(slot: Slot, episode: Episode) -> Verdict:
        return await env.compute_reward(row, episode, ToolContext(slot))

    scoring = Scoring(check=check, score_in=spec.score_in, keep=spec.keep, files=spec.check_files)
    rollout = Rollout(messages=env.format_prompt(row), toolsets=["terminal"], scoring=scoring)
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        return await rollout.run(pool, PlanModel({env.format_prompt(row): [list(commands), "done"]}))


def written(text: str) -> str:
    return f"printf %s {shlex.quote(text)} > {WORK}"


@pytest.mark.parametrize("number", range(len(ROWS)))
async def test_oracle_and_null(number: int) -> None:
    row = ROWS[number]
    solved = await worked(row, written(row["prompt"] + row["canonical_solution"]))
    idle = await worked(row, "true")
    assert (solved.reward, solved.solved) == (1.0, True), (solved.verdict, solved.error)
    assert (idle.reward, idle.trainable) == (0.0, True), (idle.verdict, idle.error)


CHEATS = {
    "wrong": "def longest_run(text):\n    return 0\n",
    "no Python": "this is no Python",
    "ends the process": "import os\nos._exit(0)\n",
    "leaves": "import sys\nsys.exit(0)\n",
    "prints": "print('1 passed')\nprint('OK')\n",
    "reads another test": "import builtins, io\nbuiltins.open = lambda *a: io.BytesIO(b'')\nbuiltins.exec = print\n",
    "takes the token from the module": "import __main__, sys\nprint(__main__.token)\nsys.exit(0)\n",
}


@pytest.mark.parametrize("cheat", sorted(CHEATS))
async def test_a_module_that_fails_has_a_tenth(cheat: str) -> None:
    result = await worked(ROWS[0], written(CHEATS[cheat]))
    assert (result.reward, result.solved) == (0.1, False), (result.verdict, result.error)


async def test_what_lies_beside_the_module_does_not_count() -> None:
    """DEFECTS E12: no program, module or test of the model's is there."""
    pranks = "mkdir .check; for f in sys.py json.py .check/check.py .check/tests.py; do echo exit > $f; done"
    result = await worked(ROWS[0], pranks, written("def longest_run(text):\n    return 7\n"))
    nothing = await worked(ROWS[0], pranks)
    assert (result.reward, nothing.reward) == (0.1, 0.0), (result.verdict, nothing.verdict)


async def test_text_of_the_data_set_never_meets_a_shell() -> None:
    """DEFECTS E13: quotes, dollars, backticks and newlines of a test are the test's."""
    text = "$(touch /tmp/x)`id`\"'\\\n"
    row = dict(ROWS[0], test=f"assert echo({json.dumps(text)}) == {json.dumps(text)}\n")
    result = await worked(row, written("def echo(text):\n    return text\n"))
    assert result.reward == 1.0, result.verdict


async def test_a_function_that_hangs_fails() -> None:
    result = await worked(ROWS[0], written("while True:\n    pass\n"), test_timeout_s=1)
    assert (result.reward, result.trainable) == (0.1, True), (result.verdict, result.error)


@pytest.mark.xfail(reason="docs/environments/small.md: the function and its tests share a process")
async def test_a_function_that_forges_the_answer_from_within() -> None:
    forged = "import os, sys\nprint(sys._getframe(1).f_locals['token'].strip(), flush=True)\nos._exit(0)\n"
    result = await worked(ROWS[0], written(forged))
    assert result.reward == 0.1
