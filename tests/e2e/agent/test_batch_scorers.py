"""Scorers, host tools and hooks in a batch, in Python and from the command line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_agent import CommandCheck, Episode, Hooks, ToolCall, Verdict
from hermes_batch import Record, Task, read_records, resume_batch, run_batch
from hermes_exec import Slot, blocking
from hermes_exec.errors import ConfigError, SandboxDied
from tests.e2e.agent.plans import Step
from tests.e2e.agent.test_batch_run import config
from tests.e2e.agent.test_commands import model, plan_endpoint, prompts, run

pytestmark = pytest.mark.anyio
WORKS: list[Step] = [["echo 7 > made"], "done"]


async def record_of(
    tmp_path: Path, scorer: Callable[..., object], row: dict[str, Any] | None = None, **settings: Any
) -> Record:
    batch = config(tmp_path, {"p": WORKS}, {"prompt": "p", **(row or {})}, scorer=scorer, **settings)
    await run_batch(batch)
    (record,) = read_records(batch.out)
    return record  # type: ignore[return-value]  # a record of this version


def facts(record: Record) -> tuple[str, str, Any]:
    return record["solved"], record["reward"], json.loads(record["reward_info"])


async def test_async_scorer_gets_slot_episode_and_task(tmp_path: Path) -> None:
    async def score(slot: Slot, episode: Episode, task: Task) -> dict[str, object]:
        text = await slot.files.read_text("made")
        verdict = await CommandCheck(task.check or "")(slot, episode)
        return {"reward": 0.5, "solved": verdict.solved, "text": text, "turns": episode.turns, "from": task.metadata}

    row = {"check": "grep -q 7 made && sh t.sh", "check_files": {"t.sh": "exit 0"}, "metadata": {"n": 1}}
    record = await record_of(tmp_path, score, row)
    assert facts(record) == ("solved", "0.5", {"text": "7\n", "turns": 2, "from": {"n": 1}})


async def test_plain_scorer_has_the_blocking_slot_and_its_thread(tmp_path: Path) -> None:
    def score(slot: blocking.Slot, episode: Episode) -> bool:
        time.sleep(0.01)
        return slot.run("cat made").stdout == "7\n" and slot.files.exists("made")

    assert facts(await record_of(tmp_path, score)) == ("solved", "1.0", {})


async def test_scorer_that_raises_leaves_its_prompt_unscored(tmp_path: Path) -> None:
    calls = []

    async def score(slot: Slot, episode: Episode) -> float:
        calls.append(episode.turns)
        return {"a": 1.0}["b"]

    record = await record_of(tmp_path, score)
    assert facts(record) == ("unscored", "null", {})
    assert (record["trainable"], record["cause"], record["attempts"], calls) == (False, "config", 1, [2])
    (error,) = json.loads(record["errors"])
    assert (error["kind"], error["message"]) == ("ScorerFailed", "the scorer raised KeyError: 'b'")
    assert record["check"]["timed_out"] is False


async def leave(slot: Slot, episode: Episode) -> bool:
    raise SystemExit(1)


async def fail_in_a_group(slot: Slot, episode: Episode) -> bool:
    async with anyio.create_task_group():
        raise KeyError("b")
    return True


def leave_the_thread(slot: blocking.Slot, episode: Episode) -> bool:
    raise SystemExit(1)


@pytest.mark.parametrize(
    ("scorer", "error"),
    [(leave, "SystemExit: 1"), (leave_the_thread, "SystemExit: 1"), (fail_in_a_group, "KeyError: 'b'")],
)
async def test_scorer_that_raises_other_errors(tmp_path: Path, scorer: Callable[..., object], error: str) -> None:
    record = await record_of(tmp_path, scorer)
    assert (record["solved"], record["cause"]) == ("unscored", "config")
    assert json.loads(record["errors"])[0]["message"] == f"the scorer raised {error}"


def fail(slot: blocking.Slot, episode: Episode) -> float:
    return {"a": 1.0}["b"]


async def test_scorer_that_fails_every_time_stops_the_run(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n}"} for n in range(12)]
    batch = config(tmp_path, {row["prompt"]: WORKS for row in rows}, *rows, scorer=fail, workers=2)
    with pytest.raises(ConfigError, match=r"no episode was scored, and 8 failed: the scorer raised KeyError: 'b'"):
        await run_batch(batch)
    assert [*{record["solved"] for record in read_records(batch.out)}] == ["unscored"]

    result = await resume_batch(batch.out, model=batch.model, scorer=lambda *_: True)
    assert (result.solved, result.total) == (12, 12)
    result = await resume_batch(batch.out, model=batch.model, scorer=fail, samples=2)
    assert (result.solved, result.unscored, result.total) == (12, 12, 24)


@pytest.mark.parametrize("plain", [True, False])
async def test_scorer_that_takes_too_long(tmp_path: Path, plain: bool) -> None:
    async def wait(slot: Slot, episode: Episode) -> bool:
        await anyio.sleep(60)
        return True

    def sleep(slot: blocking.Slot, episode: Episode) -> bool:
        time.sleep(2)
        return True

    record = await record_of(tmp_path, sleep if plain else wait, check_timeout_s=0.3)
    assert (record["solved"], record["check"]["timed_out"]) == ("unscored", True)
    assert "the scorer took longer than 0.3 s" in record["errors"]


async def test_failure_of_the_slot_in_a_scorer_is_tried_again(tmp_path: Path) -> None:
    calls = []

    async def score(slot: Slot, episode: Episode) -> Verdict:
        calls.append(slot.sandbox)
        if len(calls) == 1:
            raise SandboxDied("gone")
        return Verdict(1.0, solved=True)

    record = await record_of(tmp_path, score)
    assert (record["solved"], record["attempts"], len(calls)) == ("solved", 2, 2)


async def test_hooks_and_objects_are_given_again_on_resume(tmp_path: Path) -> None:
    seen: list[str] = []

    def refuse(call: ToolCall) -> str:
        seen.append(call.name)
        return "not now"

    batch = config(
        tmp_path, {"p": WORKS}, {"prompt": "p"}, hooks=Hooks(before_call=refuse), scorer=lambda _slot, _episode: 0
    )
    await run_batch(batch)
    (record,) = read_records(batch.out)
    assert (seen, facts(record)) == (["terminal"], ("unsolved", "0.0", {}))  # type: ignore[arg-type]
    assert "not now" in record["messages"]
    with pytest.raises(ConfigError, match="used hooks, model, scorer, which is not stored"):
        await resume_batch(batch.out)


SCORE = """
from hermes_exec.tools import tool

async def score(slot, episode):
    return {"reward": float((await slot.run("cat made")).stdout or 0), "calls": len(episode.tool_calls)}

def broken(slot, episode):
    raise ValueError("no judge")

@tool
def double(number: int) -> int:
    "Return twice the number."
    return 2 * number
"""


def test_scorer_and_tools_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text(SCORE)
    scorer = ("--scorer", str(tmp_path / "score.py:score"), "--tools", str(tmp_path / "score.py:double"))
    plans: dict[str, list[Step]] = {"a": [["echo 0.5 > made"], "done"], "b": ["done"]}
    with plan_endpoint(plans) as url:
        file, out = str(prompts(tmp_path, "a")), str(tmp_path / "out")
        done = run("batch", "run", file, "--out", out, *scorer, *model(url))
        prompts(tmp_path, "a", "b")
        resumed = run("batch", "resume", out, "--json", "--api-key", "x")
        raising = run("batch", "run", file, "--out", f"{out}2", "--scorer", f"{tmp_path}/score.py:broken", *model(url))
        wrong = run("batch", "run", file, "--out", f"{out}3", "--scorer", f"{tmp_path}/score.py:scor", *model(url))
    assert (done.returncode, resumed.returncode, raising.returncode, wrong.returncode) == (0, 0, 3, 2), resumed.stderr
    records = {record["prompt_index"]: record for record in read_records(Path(out))}
    assert [records[n]["reward"] for n in range(2)] == ["0.5", "0.0"]
    assert json.loads(records[0]["reward_info"]) == {"calls": 1}
    assert "double" in [each["function"]["name"] for each in json.loads(records[1]["tools"])]
    assert "the scorer raised ValueError: no judge" in raising.stdout
    assert "did you mean 'score'" in " ".join(wrong.stderr.split())
