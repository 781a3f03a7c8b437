"""Runs that stop a prompt after enough solved samples, and rollouts of other programs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_agent import CommandCheck, Completion, Hooks, Message, Rollout, Scoring
from hermes_batch import BatchResult, Record, read_records, resume_batch, run_batch, run_rollouts
from hermes_exec import SandboxPool
from hermes_exec.errors import ConfigError
from tests.e2e.agent.plans import PlanModel, Step, completion
from tests.e2e.agent.test_batch_run import config
from tests.e2e.agent.test_commands import ROOT, model, plan_endpoint, prompts, run

pytestmark = pytest.mark.anyio
WAIT_S = 60


class SecondTry:
    """A model that does the work in every second episode of the prompt `second`, and in each one of `always`."""

    model = "second-try"

    def __init__(self) -> None:
        self.episodes: Counter[str] = Counter()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        prompt = str(messages[-1]["content"])
        if messages[-1]["role"] != "user":
            return completion("done", "1")
        self.episodes[prompt] += 1
        works = prompt == "always" or (prompt == "second" and self.episodes[prompt] % 2 == 0)
        return completion(["touch made"] if works else "done", "0")


def rows() -> list[dict[str, Any]]:
    return [{"prompt": name, "check": "[ -e made ]"} for name in ("always", "second", "never")]


async def test_prompts_stop_after_enough_solved_samples(tmp_path: Path) -> None:
    asked = SecondTry()
    run = config(tmp_path, {}, *rows(), model=asked, samples=4, until_solved=1, workers=1)
    result = await run_batch(run)
    assert asked.episodes == {"always": 1, "second": 2, "never": 4}
    assert (result.total, result.records, result.solved, result.complete) == (7, 7, 2, True)
    assert result.tally.groups.summarize(1)["pass@1"].mean == pytest.approx(1 / 3)
    more = await resume_batch(run.out, model=asked, until_solved=2)
    assert asked.episodes == {"always": 2, "second": 4, "never": 4}
    assert (more.total, more.kept, more.complete) == (10, 7, True)
    every = await resume_batch(run.out, model=asked, until_solved=None)
    assert asked.episodes == {"always": 4, "second": 4, "never": 4}
    assert (every.total, every.solved) == (12, 6)


async def test_samples_under_way_are_kept(tmp_path: Path) -> None:
    run = config(tmp_path, {}, rows()[0], model=SecondTry(), samples=6, until_solved=1, workers=3)
    result = await run_batch(run)
    assert result.complete
    assert 1 <= result.records <= 3
    assert result.solved == result.records


def test_until_solved_from_the_command_line(tmp_path: Path) -> None:
    turns: Counter[str] = Counter()
    plans: dict[str, list[Step]] = {"a": [["touch made"], "done"], "b": ["done"]}
    with plan_endpoint(plans, lambda prompt, turn: turns.update([prompt] * (turn == 0))) as url:
        arguments = ("--out", str(tmp_path / "out"), "--samples", "3", "--workers", "1", *model(url))
        file = str(prompts(tmp_path, "a", "b"))
        wrong = run("batch", "run", file, *arguments, "--until-solved", "4")
        done = run("batch", "run", file, *arguments, "--until-solved", "2")
        shown = run("batch", "show", str(tmp_path / "out"))
        groups = run("batch", "show", str(tmp_path / "out"), "--by", "backend", "--json")
        every = run("batch", "resume", str(tmp_path / "out"), "--until-solved", "0", "--json", "--api-key", "x")
    assert (wrong.returncode, "until_solved: 4 solved samples" in " ".join(wrong.stderr.split())) == (2, True)
    assert "2 of 5 solved, pass@1 0.500 ± 0.500, 2 tool calls," in done.stdout, done.stderr
    assert "pass@1 0.500 ± 0.500" in shown.stdout
    (group,) = json.loads(groups.stdout)
    assert group["estimates"] == {"pass@1": {"mean": 0.5, "error": 0.5, "prompts": 2}}
    assert turns == {"a": 3, "b": 3}
    facts = json.loads(every.stdout)
    assert facts["estimates"]["pass@3"] == {"mean": 0.5, "error": 0.5, "prompts": 2}
    assert "pass@3 0.500 ± 0.500" in facts["summary"]


CHECK = Scoring(check=CommandCheck("[ -e made ]"))


def rollouts(*names: str, **loop: Any) -> list[tuple[str, Rollout]]:
    return [(f"id-{name}", Rollout(messages=name, toolsets=("terminal",), scoring=CHECK, loop=loop)) for name in names]


PLANS: dict[str, list[Step]] = {"a": [["touch made"], "done"], "b": ["done"], "c": [["touch made"], "done"]}


async def test_rollouts_run_once_for_each_id_and_sample(tmp_path: Path) -> None:
    turns: Counter[str] = Counter()
    planned = PlanModel(PLANS, lambda prompt, turn: turns.update([prompt] * (turn == 0)))
    seen: defaultdict[str, int] = defaultdict(int)
    hooks = Hooks(before_call=lambda call: seen.__setitem__(call.name, seen[call.name] + 1))
    async with SandboxPool("local") as pool:
        with anyio.fail_after(WAIT_S), anyio.CancelScope() as scope:

            def stop(result: BatchResult, record: Record) -> None:
                if result.records == 3:
                    scope.cancel()

            await run_rollouts(rollouts("a", "b"), pool, planned, tmp_path, samples=2, workers=1, on_record=stop)
        assert len([*read_records(tmp_path)]) == 3
        result = await run_rollouts(rollouts("c", "b", "a", hooks=hooks), pool, planned, tmp_path, samples=2)
        again = await run_rollouts(rollouts("b", "c", "a"), pool, planned, str(tmp_path), samples=2)
        assert pool.is_open
    assert turns == {"a": 2, "b": 2, "c": 2}
    assert (result.total, result.kept, result.solved, result.complete) == (6, 3, 4, True)
    assert (again.records, again.kept) == (6, 6)
    assert seen == {"terminal": 2}
    records = [*read_records(tmp_path)]
    assert sorted((record["id"], record["sample"]) for record in records) == [
        (f"id-{name}", sample) for name in "abc" for sample in range(2)
    ]
    assert {(record["solved"], record["reward"]) for record in records} == {("solved", "1.0"), ("unsolved", "0.0")}
    assert {record["backend"] for record in records} == {"local"}
    assert (tmp_path / "report.html").exists()
    with pytest.raises(ConfigError, match="written by run_rollouts: call it again"):
        await resume_batch(tmp_path)


async def test_rollouts_open_a_closed_pool_and_stop_early(tmp_path: Path) -> None:
    pool = SandboxPool("local")
    result = await run_rollouts(
        rollouts("a", "b"), pool, PlanModel(PLANS), tmp_path, samples=3, until_solved=1, workers=1
    )
    assert (result.records, result.solved, pool.is_open) == (4, 1, False)


@pytest.mark.parametrize(
    ("budget", "words"),
    [({"budget_tokens": 40}, "tokens 45 of 40"), ({"budget_time_s": 0.001}, "time 0.001 s")],
)
async def test_budget_of_rollouts_holds_over_all_calls(tmp_path: Path, budget: dict[str, Any], words: str) -> None:
    items, planned = rollouts("a", "b", "c"), PlanModel(PLANS)
    async with SandboxPool("local") as pool:
        stopped = await run_rollouts(items, pool, planned, tmp_path, workers=1, **budget)
        assert (stopped.complete, stopped.stopped) == (False, f"the budget is used up: {words}")
        with pytest.raises(ConfigError, match=r"used up: .* nothing was started"):
            await run_rollouts(items, pool, planned, tmp_path, **budget)
        rest = await run_rollouts(items, pool, planned, tmp_path, budget_tokens=1000, budget_time_s=600)
    assert (rest.complete, rest.stopped, rest.kept) == (True, None, stopped.records)


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        ([], {}, "at least one rollout"),
        (rollouts("a"), {"budget_tokens": 0}, "budget_tokens must be more than 0, not 0"),
        (rollouts("a"), {"budget_time_s": -1.0}, "budget_time_s must be more than 0"),
        (rollouts("a"), {"budget_cost": float("nan")}, "budget_cost must be more than 0"),
        (rollouts("a", "a"), {}, "two rollouts have the id 'id-a'"),
        (rollouts("a"), {"samples": 0}, "samples must be at least 1, not 0"),
        (rollouts("a"), {"workers": 0}, "workers must be at least 1"),
        (rollouts("a"), {"retries": -1}, "retries must be at least 0"),
        (rollouts("a"), {"until_solved": 2}, r"until_solved must be from 1 to samples \(1\), not 2"),
    ],
)
async def test_wrong_rollouts(
    tmp_path: Path, items: list[tuple[str, Rollout]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        await run_rollouts(items, SandboxPool("local"), PlanModel(PLANS), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


async def test_rollouts_refuse_the_results_of_others(tmp_path: Path) -> None:
    batch = config(tmp_path, PLANS, {"prompt": "a"})
    await run_batch(batch)
    with pytest.raises(ConfigError, match="none of the 1 results belongs to a prompt of this call"):
        await run_rollouts(rollouts("a"), SandboxPool("local"), PlanModel(PLANS), batch.out)


KILLED = """
import sys, anyio
from itertools import repeat
from hermes_agent import Rollout, ScriptedModel
from hermes_batch import run_rollouts
from hermes_exec import SandboxPool

async def main():
    rollouts = [(f"r{n}", Rollout(messages=f"m{n}", toolsets=("terminal",))) for n in range(5)]
    pool = SandboxPool("local", lease_s=5, run_id=sys.argv[2])
    show = lambda result, record: print(result.records, flush=True)
    await run_rollouts(rollouts, pool, ScriptedModel(repeat("done")), sys.argv[1], samples=4, workers=2, on_record=show)

anyio.run(main)
"""


def test_killed_rollouts_go_on(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", KILLED, str(tmp_path / "out"), tmp_path.name]
    for kill_at in (3, 9, None):
        with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if kill_at is not None and int(line) >= kill_at:
                    process.send_signal(signal.SIGKILL)
                    break
        assert process.returncode == (0 if kill_at is None else -signal.SIGKILL)
    run("reap", "--run-id", tmp_path.name)
    keys = [(record["id"], record["sample"]) for record in read_records(tmp_path / "out")]
    assert all(record["trainable"] for record in read_records(tmp_path / "out"))
    assert sorted(keys) == [(f"r{n}", sample) for n in range(5) for sample in range(4)]
