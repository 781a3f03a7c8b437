"""Rows of all forms in real runs: entries that change the slot of their prompt, and the flags that read them."""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_agent import CommandCheck, Rollout, Scoring
from hermes_batch import BatchConfig, read_records, run_batch
from hermes_batch.task_slot import SetUpCommand
from hermes_exec import ErrorCause, SandboxPool, Slot
from tests.conftest import BackendCase, require_engine
from tests.e2e.agent.plans import PlanModel, Step
from tests.e2e.agent.test_commands import model, plan_endpoint, run

pytestmark = pytest.mark.anyio
DONE: list[Step] = ["done"]


def config(
    directory: Path, *rows: dict[str, Any], plans: dict[str, list[Step]] | None = None, **more: Any
) -> BatchConfig:
    path = directory / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plans = plans or {row["prompt"]: DONE for row in rows}
    return BatchConfig(**{"dataset": path, "out": directory / "out", "model": PlanModel(plans), "workers": 3, **more})


def results(run: BatchConfig) -> dict[str, tuple[str, str]]:
    return {record["id"]: (record["solved"], record["cause"]) for record in read_records(run.out)}


async def test_setup_files_and_env_are_in_the_slot_and_in_the_check(tmp_path: Path, backend: BackendCase) -> None:
    check = '[ "$COLOUR" = blue ] && [ $(cat size.txt) = 3 ] && grep -q blue colour.txt && grep -q blue seen.txt'
    rows: list[dict[str, Any]] = [
        {
            "id": "all",
            "prompt": "all",
            "files": {"in/data.bin": {"base64": base64.b64encode(b"\0\xff\n").decode()}},
            "setup": 'wc -c < in/data.bin > size.txt; echo "$COLOUR" > colour.txt',
            "env": {"COLOUR": "blue"},
            "check": check,
        },
        {"id": "none", "prompt": "none", "check": '[ -z "${COLOUR:-}" ]'},
    ]
    plans: dict[str, list[Step]] = {"all": [['echo "$COLOUR" > seen.txt'], "done"], "none": DONE}
    run = config(tmp_path, *rows, plans=plans, backend=backend.backend, image=backend.options.get("image"))
    await run_batch(run)
    assert {solved for solved, _ in results(run).values()} == {"solved"}, [*read_records(run.out)]


async def test_failing_setup_is_the_fault_of_its_task(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "fails", "prompt": "a", "setup": "echo broken; exit 7", "check": "true"},
        {"id": "hangs", "prompt": "b", "setup": "echo slow; sleep 60", "check": "true"},
        {
            "id": "kept",
            "prompt": "c",
            "setup": "sh a.sh",
            "files": {"a.sh": ":> b"},
            "keep": ["c"],
            "check": "[ -e b ]",
        },
    ]
    run = config(tmp_path, *rows, setup_timeout_s=1.0)
    await run_batch(run)
    records = {record["id"]: record for record in read_records(run.out)}
    assert results(run) == {"fails": ("unscored", "task"), "hangs": ("unscored", "task"), "kept": ("solved", "policy")}
    assert "the setup ended with exit code 7; it printed: broken" in records["fails"]["errors"]
    assert "the setup took longer than 1 s; it printed: slow" in records["hangs"]["errors"]
    assert [records[name]["api_calls"] for name in ("fails", "hangs")] == [0, 0]


async def test_setup_that_fails_in_the_slot_of_the_check_gives_no_reward() -> None:
    """It runs a second time there, before the kept files are put in."""
    done = 0

    async def prepare(slot: Slot) -> None:
        nonlocal done
        done += 1
        await SetUpCommand(f"[ {done} = 1 ]", 10)(slot)

    scoring = Scoring(check=CommandCheck("true"), keep=["a"])
    rollout = Rollout(messages="go", prepare=prepare, scoring=scoring)
    async with SandboxPool("local") as pool:
        result = await rollout.run(pool, PlanModel({"go": DONE}))
    assert (done, result.cause, result.reward, result.trainable) == (2, ErrorCause.TASK, None, False)


async def test_entries_of_the_loop_are_used(tmp_path: Path) -> None:
    plans: dict[str, list[Step]] = {"long": [["true"], ["true"], ["true"], "done"], "slow": [["sleep 30"], "done"]}
    rows = [
        {"id": "turns", "prompt": "long", "max_turns": 2},
        {"id": "deadline", "prompt": "slow", "deadline_s": 1},
        {"id": "check", "prompt": "long", "check": "sleep 30", "check_timeout_s": 0.5},
    ]
    run = config(tmp_path, *rows, plans=plans)
    await run_batch(run)
    records = {record["id"]: record for record in read_records(run.out)}
    assert (records["turns"]["finish"], records["turns"]["turns"]) == ("max_turns", 2)
    assert records["deadline"]["finish"] == "deadline"
    assert records["check"]["check"]["timed_out"]


@pytest.mark.docker
async def test_network_and_profile_of_a_row_select_its_sandbox(
    tmp_path: Path, docker_image: Callable[[str], str]
) -> None:
    require_engine("docker")
    rows: list[dict[str, Any]] = [
        {"id": "off", "prompt": "a", "network": False, "check": "[ $(grep -c : /proc/net/dev) = 1 ]"},
        {"id": "on", "prompt": "b", "network": True, "check": "[ $(grep -c : /proc/net/dev) -gt 1 ]"},
        {"id": "other", "prompt": "c", "profile": "busy", "env": {"B": "2"}},
    ]
    rows[2]["check"] = '[ "$A$B" = 12 ] && [ ! -e /etc/debian_version ]'
    profiles = {"busy": {"image": docker_image("busybox"), "env": {"A": "1"}}}
    settings: dict[str, Any] = {
        "backend": "docker",
        "image": docker_image("debian"),
        "backend_options": {"profiles": profiles},
    }
    run = config(tmp_path, *rows, **settings)
    await run_batch(run)
    assert results(run) == dict.fromkeys(("off", "on", "other"), ("solved", "policy")), [*read_records(run.out)]


def test_command_reads_csv_with_fields(tmp_path: Path) -> None:
    table = tmp_path / "questions.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "name", "prompt", "setup", "check", "level"])
        writer.writerow(["make it", "seven", "unused", "echo ready > ready", "[ -e made ] && [ -e ready ]", "2"])
        writer.writerow(["make it", "eight", "unused", "sleep 9", "true", ""])
    out = tmp_path / "out"
    fields = ("--field", "prompt=question", "--field", "id=name", "--extra", "metadata", "--setup-timeout", "2")
    with plan_endpoint({"make it": [["touch made"], "done"]}) as url:
        done = run("batch", "run", str(table), "--out", str(out), *model(url), *fields)
        resumed = run("batch", "resume", str(out), "--api-key", "x")
    assert (done.returncode, resumed.returncode) == (3, 3), done.stderr
    records = {record["id"]: record for record in read_records(out)}
    assert (records["seven"]["solved"], records["eight"]["cause"]) == ("solved", "task")
    assert json.loads(records["seven"]["task_metadata"]) == {"level": "2"}


def test_command_reads_a_split_of_datasets(tmp_path: Path) -> None:
    import datasets  # type: ignore[import-untyped]

    row = {"prompt": "make it", "check": "[ -e made ]", "files": json.dumps({"a": "1"})}
    rows = [{**row, "id": str(n)} for n in range(2)]
    datasets.DatasetDict({"dev": datasets.Dataset.from_list(rows)}).save_to_disk(str(tmp_path / "saved"))
    with plan_endpoint({"make it": [["touch made"], "done"]}) as url:
        name = f"hf:{tmp_path / 'saved'}:dev"
        done = run("batch", "run", name, "--out", str(tmp_path / "out"), *model(url), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["solved"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--field", "prompt"], "--field takes ENTRY=COLUMN, such as prompt=question, not 'prompt'"),
        (["--field", "prompt=a", "--field", "prompt=b"], "--field: the entry 'prompt' has two columns, 'a' and 'b'"),
        (["--field", "promt=a"], "columns: a row has no entry 'promt'; did you mean 'prompt'"),
        (["--field", "prompt=nowhere"], "line 1: has no column 'nowhere'"),
        (["--setup-timeout", "0"], "setup_timeout_s: input should be greater than 0"),
    ],
)
def test_wrong_fields_are_refused_before_anything(arguments: list[str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n')
    done = run("batch", "run", str(path), "--out", str(tmp_path / "out"), "--model", "m", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()
