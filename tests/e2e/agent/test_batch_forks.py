"""Samples of a prompt that share its set-up: set up once, with the records of a run that sets up each slot."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_batch import BatchConfig, BatchResult, Record, resume_batch, run_batch
from tests.e2e.agent.plans import PlanModel, Step
from tests.e2e.agent.test_batch_run import config, lines

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
PLANS: dict[str, list[Step]] = {name: [["cat id; cat seed.txt > out; echo $A; touch /etc/x"], "done"] for name in "ab"}
VOLATILE = ("seconds", "timings", "started", "ended", "sandbox", "timestamp")


@pytest.fixture
def make(docker_image: Callable[[str], str], tmp_path: Path) -> Callable[..., BatchConfig]:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "seed.txt").write_text("seed\n")

    def made(setup: str, **more: Any) -> BatchConfig:
        entry = {"tree": "tree", "setup": setup, "env": {"A": "1"}, "check": "grep -qx seed out && [ ! -e /etc/x ]"}
        rows = [{"prompt": name, **entry} for name in "ab"]
        given = {"backend": "docker", "image": docker_image("debian"), "samples": 3, "max_sandboxes": 1, **more}
        return config(tmp_path, PLANS, *rows, **given)

    return made


UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
DRAW = "cat /proc/sys/kernel/random/uuid > id"


def drawn_ids(directory: Path) -> dict[str, list[str]]:
    """The ids that the set-ups of the samples drew, by prompt, in the order of the records."""
    ids: dict[str, list[str]] = defaultdict(list)
    for record in lines(directory):
        found = UUID.search(str(record["conversations"]))
        assert found is not None
        ids[record["prompt_index"]].append(found[0])
    return dict(ids)


async def test_samples_are_forks_of_one_set_up(make: Any, tmp_path: Path) -> None:  # noqa: ANN401
    result = await run_batch(make(DRAW))
    assert (result.complete, result.records, result.solved, result.unscored) == (True, 6, 6, 0)
    assert [len(ids) for ids in drawn_ids(tmp_path).values()] == [3, 3]
    assert [len(set(ids)) for ids in drawn_ids(tmp_path).values()] == [1, 1]
    assert len({ids[0] for ids in drawn_ids(tmp_path).values()}) == 2


@pytest.mark.parametrize(
    ("setup", "more"),
    [
        (DRAW, {"fork_samples": False}),
        (DRAW, {"until_solved": 3}),
        (DRAW, {"slots_per_sandbox": 1, "max_sandboxes": 3}),
        (f"{DRAW}; sleep 1000 > /dev/null 2>&1 &", {}),
    ],
    ids=["off", "until solved", "no checkpoints", "a process"],
)
async def test_each_sample_has_its_own_set_up_where_it_must(
    make: Any,  # noqa: ANN401
    tmp_path: Path,
    setup: str,
    more: dict[str, Any],
) -> None:
    result = await run_batch(make(setup, **more))
    assert (result.complete, result.records, result.unscored) == (True, 6, 0)
    assert [len(set(ids)) for ids in drawn_ids(tmp_path).values()] == [3, 3]


async def test_records_are_those_of_a_run_that_sets_up_each_slot(make: Any, tmp_path: Path) -> None:  # noqa: ANN401
    records = []
    for fork in (True, False):
        await run_batch(make("echo same > id", fork_samples=fork, workers=1, overwrite=True))
        records.append(lines(tmp_path))
    order = [[(record["prompt_index"], record["sample"]) for record in run] for run in records]
    assert order[0] == [(prompt, sample) for prompt in (0, 1) for sample in (0, 1, 2)]
    assert order[1] == [(prompt, sample) for sample in (0, 1, 2) for prompt in (0, 1)]
    for run in records:
        run.sort(key=lambda record: (record["prompt_index"], record["sample"]))
        for record in run:
            steady(record)
    assert records[0] == records[1]


def steady(data: Any) -> None:  # noqa: ANN401 - JSON
    """Remove what differs in any two runs: times and names of sandboxes."""
    if isinstance(data, dict):
        for name in [each for each in data if each in VOLATILE or each.endswith(("_s", "_seconds", "_id"))]:
            del data[name]
        if "calls" in data:
            data["calls"] = json.loads(data["calls"])
    for value in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        steady(value)


async def test_lost_set_up_is_made_again(make: Any, tmp_path: Path) -> None:  # noqa: ANN401
    def end_first(result: BatchResult, record: Record) -> None:
        if result.records == 1:
            found = subprocess.run(["docker", "ps", "-q", "--no-trunc"], check=True, capture_output=True, text=True)
            assert str(record["sandbox"]) in found.stdout.split()
            subprocess.run(["docker", "kill", str(record["sandbox"])], check=True, capture_output=True)

    result = await run_batch(make(DRAW, workers=1), on_record=end_first)
    assert (result.complete, result.solved, result.unscored) == (True, 6, 0)
    assert [len(set(ids)) for ids in drawn_ids(tmp_path).values()] == [2, 1]
    assert [record["attempts"] for record in lines(tmp_path)] == [1] * 6


async def test_failed_set_up_is_in_the_record_of_each_sample(make: Any, tmp_path: Path) -> None:  # noqa: ANN401
    result = await run_batch(make("echo no network; exit 7"))
    assert (result.records, result.solved, result.unscored) == (6, 0, 6)
    for record in lines(tmp_path):
        assert (record["cause"], record["trainable"]) == ("task", False)
        assert "exit code 7; it printed: no network" in str(record["errors"])


async def test_resumed_run_has_each_sample_once(make: Any, tmp_path: Path) -> None:  # noqa: ANN401
    with anyio.fail_after(120), anyio.CancelScope() as scope:

        def stop(result: BatchResult, _: Record) -> None:
            if result.records == 2:
                scope.cancel()

        await run_batch(make(DRAW, workers=2), on_record=stop)
    first = len(lines(tmp_path))
    result = await resume_batch(tmp_path / "out", model=PlanModel(PLANS))
    assert (result.complete, result.kept) == (True, first)
    more = await resume_batch(tmp_path / "out", model=PlanModel(PLANS), samples=6)
    assert (more.complete, more.kept, more.total) == (True, 6, 12)
    keys = Counter((record["prompt_index"], record["sample"]) for record in lines(tmp_path))
    assert keys == {(prompt, sample): 1 for prompt in (0, 1) for sample in range(6)}
    later = [set(ids[3:]) for ids in drawn_ids(tmp_path).values()]
    assert [len(ids) for ids in later] == [1, 1], "the samples that were added share a set-up"
