"""Going on with a batch run that was ended: nothing is paid twice, nothing is lost, nothing is there twice."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_batch import BatchConfig, BatchResult, Record, read_records, resume_batch, run_batch
from hermes_exec.errors import ConfigError
from tests.e2e.agent.plans import PlanModel, Step
from tests.e2e.agent.test_batch_run import config, dataset, lines
from tests.e2e.agent.test_commands import ROOT, command, model, plan_endpoint, prompts, run

pytestmark = pytest.mark.anyio


def trajectories(directory: Path) -> Path:
    return directory / "out" / "trajectories.jsonl"


def indexes(directory: Path) -> list[int]:
    return [record["prompt_index"] for record in lines(directory)]


class Asked:
    """A model that counts its completions by prompt."""

    def __init__(self, plans: dict[str, list[Step]]) -> None:
        self.turns: Counter[str] = Counter()
        self.model = PlanModel(plans, lambda prompt, _: self.turns.update([prompt]))


async def cancelled_after(run: BatchConfig, records: int) -> None:
    with anyio.fail_after(60), anyio.CancelScope() as scope:

        def stop(result: BatchResult, record: Record) -> None:
            if result.records == records:
                scope.cancel()

        await run_batch(run, on_record=stop)


def test_killed_run_goes_on_with_each_prompt_once_in_the_file(tmp_path: Path) -> None:
    out, names = tmp_path / "out", [f"p{n}" for n in range(6)]
    plans: dict[str, list[Step]] = {name: [["touch made"], ["echo on"], "done"] for name in names}
    turns: Counter[tuple[str, int]] = Counter()
    hold, held = threading.Event(), threading.Event()

    def on_turn(prompt: str, turn: int) -> None:
        turns[prompt, turn] += 1
        if prompt == "p3" and turn == 1 and not hold.is_set():
            held.set()
            hold.wait(60)

    with plan_endpoint(plans, on_turn) as url:
        arguments = ("batch", "run", str(prompts(tmp_path, *names)), "--out", str(out), "--workers", "1", *model(url))
        options = ("--option", f"run_id={tmp_path.name}", "--option", "lease_s=5")
        with subprocess.Popen(command(*arguments, *options), cwd=ROOT, stderr=subprocess.DEVNULL) as process:
            try:
                assert held.wait(60)
            finally:
                process.send_signal(signal.SIGKILL)
        hold.set()
        assert indexes(tmp_path) == [0, 1, 2]
        with trajectories(tmp_path).open("a") as file:
            file.write('{"prompt_index": 3, "conversations": [{"from": "hum')
        shown = run("batch", "show", str(out))
        resumed = run("batch", "resume", str(out), "--json", "--api-key", "x")
        again = run("batch", "resume", str(out), "--api-key", "x")
    assert "1 lines of trajectories.jsonl are not records" in shown.stderr
    assert resumed.returncode == 0, resumed.stderr
    facts = json.loads(resumed.stdout)
    assert [facts[name] for name in ("prompts", "records", "kept", "solved")] == [6, 6, 3, 6]
    assert indexes(tmp_path) == [0, 1, 2, 3, 4, 5]
    assert all(turns[name, turn] == 1 for name in names if name != "p3" for turn in range(3))
    assert again.returncode == 0, again.stderr
    assert "6 of 6 solved" in again.stdout
    assert sum(turns.values()) == 3 * 6 + 2  # p3 alone was asked again, for the turns that had no record
    assert "6 of 6" in (out / "report.html").read_text("utf-8")
    assert "are not records" not in (out / "report.html").read_text("utf-8")
    run("reap", "--run-id", tmp_path.name)


async def test_record_that_may_not_be_scored_is_replaced(tmp_path: Path) -> None:
    asked = Asked({"good": ["done"], "broken": ["done"]})
    entries: list[dict[str, Any]] = [{"prompt": "good"}, {"prompt": "broken", "cwd": "nowhere"}]
    run = config(tmp_path, {}, *entries, model=asked.model)
    await run_batch(run)
    assert [(r["prompt_index"], r["trainable"]) for r in sorted(lines(tmp_path), key=str)] == [(0, True), (1, False)]
    result = await resume_batch(run.out, model=asked.model)
    assert sorted(indexes(tmp_path)) == [0, 1]
    assert (result.kept, result.records, result.unscored) == (1, 2, 1)
    assert asked.turns == {"good": 1}


async def test_prompts_that_were_added_are_worked_on(tmp_path: Path) -> None:
    asked = Asked({"a": ["done"], "b": ["done"]})
    run = config(tmp_path, {}, {"prompt": "a"}, model=asked.model)
    await run_batch(run)
    dataset(tmp_path, {"prompt": "a", "metadata": {"note": "not asked of anybody"}}, {"prompt": "b"}, {"prompt": "a"})
    result = await resume_batch(run.out, model=asked.model)
    assert (result.complete, result.kept, sorted(indexes(tmp_path))) == (True, 1, [0, 1, 2])
    assert asked.turns == {"a": 2, "b": 1}


@pytest.mark.parametrize("entries", [[{"prompt": "b"}], [{"prompt": "a", "check": "true"}, {"prompt": "b"}]])
async def test_resume_refuses_another_dataset_and_loses_nothing(tmp_path: Path, entries: list[dict[str, Any]]) -> None:
    run = config(tmp_path, {"a": ["done"]}, {"prompt": "a"}, {"prompt": "a"}, workers=1)
    await cancelled_after(run, 1)
    before = trajectories(tmp_path).read_bytes()
    dataset(tmp_path, *entries)
    with pytest.raises(ConfigError, match=r"none of the 1 results belongs to a prompt of .*prompts\.jsonl"):
        await resume_batch(run.out, model=run.model)
    assert trajectories(tmp_path).read_bytes() == before
    assert not [*run.out.glob(".*")]


async def test_resume_finds_prompts_that_moved(tmp_path: Path) -> None:
    asked = Asked({name: ["done"] for name in "abcd"})
    rows: list[dict[str, Any]] = [{"id": f"id-{name}", "prompt": name} for name in "abca"]
    run = config(tmp_path, {}, *rows, model=asked.model, workers=1)
    await cancelled_after(run, 3)
    dataset(tmp_path, {"prompt": "d"}, rows[2], {**rows[0], "metadata": {"n": 1}}, rows[3])
    result = await resume_batch(run.out, model=asked.model)
    assert (result.total, result.records, result.kept, result.others, result.complete) == (5, 5, 3, 1, True)
    assert asked.turns == {"a": 2, "b": 1, "c": 1, "d": 1}
    keys = [(record["group"], record["sample"]) for record in lines(tmp_path)]
    assert len(set(keys)) == 5
    again = await resume_batch(run.out, model=asked.model)
    assert (again.kept, again.others, sum(asked.turns.values())) == (5, 1, 5)


async def test_solution_is_no_content_of_a_prompt(tmp_path: Path) -> None:
    asked = Asked({"a": ["done"], "b": ["done"]})
    rows: list[dict[str, Any]] = [{"prompt": "a", "check": "true"}, {"prompt": "b", "check": "true"}]
    run = config(tmp_path, {}, *rows, model=asked.model)
    await run_batch(run)
    dataset(tmp_path, *({**row, "solution": "touch made"} for row in rows))
    result = await resume_batch(run.out, model=asked.model)
    assert (result.total, result.kept, result.others) == (2, 2, 0)
    assert asked.turns == {"a": 1, "b": 1}


async def test_changed_prompt_runs_and_its_earlier_record_stays(tmp_path: Path) -> None:
    asked = Asked({"a": ["done"], "b": ["done"]})
    run = config(tmp_path, {}, {"prompt": "a"}, {"prompt": "b"}, model=asked.model)
    await run_batch(run)
    dataset(tmp_path, {"prompt": "a"}, {"prompt": "b", "check": "true"})
    result = await resume_batch(run.out, model=asked.model)
    assert (result.records, result.others, result.solved) == (3, 1, 1)
    assert asked.turns == {"a": 1, "b": 2}


async def test_samples_are_added_by_resume(tmp_path: Path) -> None:
    asked = Asked({"a": ["done"], "b": ["done"]})
    run = config(tmp_path, {}, {"prompt": "a"}, {"prompt": "b"}, model=asked.model, samples=2, workers=1)
    await cancelled_after(run, 3)
    more = await resume_batch(run.out, model=asked.model, samples=3)
    assert (more.total, more.kept, more.complete) == (6, 3, True)
    assert asked.turns == {"a": 3, "b": 3}
    order = [(record["prompt_index"], record["sample"]) for record in lines(tmp_path)]
    assert order == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    fewer = await resume_batch(run.out, model=asked.model, samples=1)
    assert (fewer.total, fewer.kept, fewer.others) == (6, 6, 4)
    assert json.loads((run.out / "run.json").read_text())["config"]["samples"] == 1


async def test_records_without_groups_are_found_by_their_lines(tmp_path: Path) -> None:
    asked = Asked({"a": ["done"], "b": ["done"], "c": ["done"]})
    rows: list[dict[str, Any]] = [{"prompt": "a"}, {"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}]
    run = config(tmp_path, {}, *rows, model=asked.model, workers=1)
    await cancelled_after(run, 3)
    later = ("group", "sample", "reward", "reward_info")
    earlier = [{name: value for name, value in record.items() if name not in later} for record in lines(tmp_path)]
    trajectories(tmp_path).write_text("".join(json.dumps(record) + "\n" for record in earlier))
    (run.out / "index.jsonl").unlink()
    dataset(tmp_path, rows[3], rows[2], rows[0], rows[1])
    result = await resume_batch(run.out, model=asked.model)
    assert (result.total, result.kept, result.others) == (4, 3, 0)
    assert asked.turns == {"a": 2, "b": 1, "c": 1}
    assert len({record["group"] for record in lines(tmp_path)}) == 4


def test_pilot_grows_from_the_command_line(tmp_path: Path) -> None:
    names = [f"p{n}" for n in range(6)]
    plans: dict[str, list[Step]] = {name: ["done"] for name in names}
    turns: Counter[str] = Counter()
    (tmp_path / "ids").write_text("".join(f"task-{n}\n" for n in range(1, 6)))
    with plan_endpoint(plans, lambda prompt, _: turns.update([prompt])) as url:
        selection = ("--ids", str(tmp_path / "ids"), "--offset", "1", "--limit", "3", "--shard", "1/2")
        out = ("--out", str(tmp_path / "out"))
        pilot = run("batch", "run", str(prompts(tmp_path, *names)), *out, *selection, *model(url))
        assert (pilot.returncode, turns) == (0, {"p2": 1, "p4": 1}), pilot.stderr
        longer = tmp_path / "longer.jsonl"
        longer.write_text(prompts(tmp_path, *names, "p2").read_text())
        options = ("--limit", "0", "--dataset", str(longer), "--samples", "2", "--json", "--api-key", "x")
        grown = run("batch", "resume", str(tmp_path / "out"), *options)
        wrong = run("batch", "run", str(longer), "--out", str(tmp_path / "b"), "--ids", "nobody", *model(url))
    assert grown.returncode == 0, grown.stderr
    assert [json.loads(grown.stdout)[name] for name in ("records", "kept")] == [4, 2]
    assert turns == {"p2": 2, "p4": 2}
    assert json.loads((tmp_path / "out" / "run.json").read_text())["config"]["dataset"] == str(longer)
    assert (wrong.returncode, "ids: the dataset has no prompt 'nobody'" in " ".join(wrong.stderr.split())) == (2, True)


def test_shuffled_shards_are_all_prompts_once_and_merge(tmp_path: Path) -> None:
    names = [f"p{n}" for n in range(5)]
    turns: Counter[str] = Counter()
    with plan_endpoint({name: ["done"] for name in names}, lambda prompt, _: turns.update([prompt])) as url:
        file = str(prompts(tmp_path, *names))
        for shard in ("1/2", "2/2"):
            options = ("--shuffle", "3", "--shard", shard, "--out", str(tmp_path / shard.replace("/", "-")))
            done = run("batch", "run", file, *options, *model(url))
            assert done.returncode == 0, done.stderr
        assert turns == dict.fromkeys(names, 1)
        merged = run("batch", "merge", str(tmp_path / "all"), str(tmp_path / "1-2"), str(tmp_path / "2-2"))
        more = run("batch", "resume", str(tmp_path / "all"), "--samples", "2", "--json", "--api-key", "x")
    assert (merged.returncode, more.returncode) == (0, 0), merged.stderr + more.stderr
    assert [json.loads(more.stdout)[name] for name in ("records", "kept", "others")] == [10, 5, 0]
    assert turns == dict.fromkeys(names, 2)


def test_samples_from_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    turns: Counter[str] = Counter()
    plans: dict[str, list[Step]] = {"a": [["touch made"], "done"], "b": ["done"]}
    with plan_endpoint(plans, lambda prompt, turn: turns.update([prompt] * (turn == 0))) as url:
        arguments = ("--out", str(out), "--samples", "2", "--workers", "3", "--seed", "5", *model(url))
        done = run("batch", "run", str(prompts(tmp_path, "a", "b")), *arguments)
        prompts(tmp_path, "b", "c", "a")
        plans["c"] = ["done"]
        more = run("batch", "resume", str(out), "--samples", "3", "--json", "--api-key", "x")
        prompts(tmp_path, "a")
        fewer = run("batch", "resume", str(out), "--api-key", "x")
    assert (done.returncode, more.returncode, fewer.returncode) == (0, 0, 0), done.stderr + more.stderr + fewer.stderr
    assert "2 of 4 solved" in done.stdout
    facts = json.loads(more.stdout)
    assert [facts[name] for name in ("prompts", "records", "kept", "solved", "others")] == [9, 9, 4, 3, 0]
    assert turns == {"a": 3, "b": 3, "c": 3}
    assert "6 records belong to no prompt that is selected now; they stay" in " ".join(fewer.stderr.split())


async def test_settings_of_the_run_are_those_of_the_rest_of_it(tmp_path: Path) -> None:
    plans: dict[str, list[Step]] = {name: [["echo $TEST_NAME > made"], ["true"], "done"] for name in "abc"}
    entries = ({"prompt": name, "check": "[ $(cat made) = kept ]"} for name in "abc")
    options = {"env": {"TEST_NAME": "kept"}}
    run = config(tmp_path, plans, *entries, backend_options=options, max_turns=2, workers=1)
    await cancelled_after(run, 1)
    result = await resume_batch(run.out, model=run.model)
    assert [(r["finish"], r["solved"]) for r in read_records(run.out)] == [("max_turns", "solved")] * 3
    assert (result.kept, result.complete) == (1, True)


async def test_secrets_are_not_written_down_and_are_asked_for(tmp_path: Path) -> None:
    plans: dict[str, list[Step]] = {"a": ["done"], "b": ["done"]}
    options = {"secrets": {"TOKEN": "hidden-7"}, "profiles": {"x": {"secrets": {"TOKEN": "hidden-8"}}}}
    entries = ({"prompt": "a"}, {"prompt": "b"})
    run = config(tmp_path, plans, *entries, backend_options=options, api_key="hidden-9", workers=1)
    await cancelled_after(run, 1)
    assert not [path for path in run.out.iterdir() if b"hidden-" in path.read_bytes()]
    with pytest.raises(ConfigError, match="used model, profiles, secrets, which is not stored"):
        await resume_batch(run.out)
    result = await resume_batch(run.out, model=run.model, backend_options=options)
    assert result.complete


async def test_run_that_is_under_way_is_not_resumed_beside_itself(tmp_path: Path) -> None:
    run = config(tmp_path, {"a": ["done"], "b": ["done"]}, {"prompt": "a"}, {"prompt": "b"}, workers=1)

    async def other() -> None:
        with pytest.raises(ConfigError, match="another process is writing"):
            await resume_batch(run.out, model=run.model)

    async with anyio.create_task_group() as tasks:

        def meanwhile(result: BatchResult, record: Record) -> None:
            tasks.start_soon(other)

        await run_batch(run, on_record=meanwhile)
    assert sorted(indexes(tmp_path)) == [0, 1]


async def test_half_of_a_record_is_dropped_and_its_prompt_done_again(tmp_path: Path) -> None:
    run = config(tmp_path, {"a": ["done"]}, *({"prompt": "a"} for _ in range(3)), workers=1)
    await cancelled_after(run, 2)
    whole = trajectories(tmp_path).read_bytes()
    trajectories(tmp_path).write_bytes(whole[:-40])
    result = await resume_batch(run.out, model=run.model)
    assert (result.kept, indexes(tmp_path)) == (1, [0, 1, 2])


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_directory_without_a_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    done = run("batch", "resume", str(tmp_path / name))
    assert (done.returncode, "has no run to resume" in " ".join(done.stderr.split())) == (2, True)
