"""A run as it is seen while it works: its status, `batch watch`, its interruption, and its death."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes_batch import BatchConfig, RunStatus, read_status, run_batch
from tests.e2e.agent.plans import PlanModel, Step
from tests.e2e.agent.test_batch_run import dataset
from tests.e2e.agent.test_commands import ROOT, command, model, plan_endpoint, prompts, run

PLANS: dict[str, list[Step]] = {"quick": [["touch made"], "done"], "slow": [["touch made"], "done"]}


@contextmanager
def run_until_held(out: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], threading.Event]]:
    """Run two prompts, one after the other, and yield the process and the event that the second one waits for."""
    held, hold = threading.Event(), threading.Event()

    def on_turn(prompt: str, turn: int) -> None:
        if prompt == "slow" and turn == 1:
            held.set()
            hold.wait(60)

    with plan_endpoint(PLANS, on_turn) as url:
        file = str(prompts(out.parent, "quick", "slow"))
        settings = ("--workers", "1", "--option", f"run_id={out.parent.name}", *options)
        with subprocess.Popen(
            command("batch", "run", file, "--out", str(out), *settings, *model(url)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert held.wait(60)
                yield process, hold
            finally:
                hold.set()
                process.kill()


@pytest.mark.anyio
async def test_status_counts_workers_by_what_they_do(tmp_path: Path) -> None:
    plans: dict[str, list[Step]] = {f"p{n}": [["sleep 1.2"], "done"] for n in range(2)}
    file = dataset(tmp_path, *({"prompt": prompt, "check": "sleep 1.2"} for prompt in plans))
    pool = {"slots_per_sandbox": 1, "max_sandboxes": 1}
    seen: list[RunStatus] = []
    settings: dict[str, Any] = {"model": PlanModel(plans), "backend": "local", "workers": 2, "backend_options": pool}
    result = await run_batch(BatchConfig(dataset=file, out=tmp_path / "out", **settings), on_status=seen.append)
    assert {"queue", "tools", "check"} <= set(sum((Counter(status.workers) for status in seen), Counter()))
    assert max(sum(status.workers.values()) for status in seen) == 2
    assert {status.records for status in seen} == {0, 1, 2}
    assert any(status.rate and status.left_s for status in seen if status.records == 1)
    last = read_status(tmp_path / "out")
    assert last == seen[-1]
    assert (last.ended, last.records, last.outcomes["solved"], last.workers) == (True, 2, 2, {})
    assert last.seconds == pytest.approx(result.seconds, abs=0.01)


def test_watch_shows_a_run_of_another_process_until_it_ends(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with run_until_held(out) as (process, hold):
        watched = subprocess.Popen(
            command("batch", "watch", str(out)), cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        facts = json.loads(run("batch", "watch", str(out), "--json").stdout)
        assert facts["working"]
        hold.set()
        _, errors = process.communicate(timeout=60)
        _, seen = watched.communicate(timeout=60)
    assert (process.returncode, watched.returncode) == (0, 0), errors + seen
    assert seen.splitlines()[-1] == "2 of 2 done (100 %); 2 of 2 solved"
    assert json.loads(run("batch", "watch", str(out), "--json").stdout)["ended"]


def test_watch_of_a_directory_without_a_run(tmp_path: Path) -> None:
    done = run("batch", "watch", str(tmp_path))
    assert (done.returncode, "has no run" in done.stderr) == (2, True)


def test_killed_run_is_reported_by_watch_and_its_files_have_its_records_and_seconds(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with run_until_held(out) as (process, _):
        for _ in range(300):
            if json.loads((out / "run.json").read_text())["records"]:
                break
            threading.Event().wait(0.1)
        process.send_signal(signal.SIGKILL)
    settings = json.loads((out / "run.json").read_text())
    assert settings["records"] == 1
    assert settings["seconds"] > 0
    gone = run("batch", "watch", str(out))
    assert gone.returncode == 3
    assert f"the process of the run is gone (its id was {process.pid} on" in " ".join(gone.stderr.split())
    assert gone.stderr.splitlines()[-1] == f"continue the run: hermes-exec batch resume {out}"
    assert "1 of 1 solved" in run("batch", "show", str(out)).stdout
    run("reap", "--run-id", tmp_path.name)


def test_interrupted_run_prints_its_totals_and_the_command_to_continue(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with run_until_held(out) as (process, _):
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    lines = errors.splitlines()
    assert lines[-1] == f"continue the run: hermes-exec batch resume {out}"
    assert lines[-2].startswith("1 of 1 solved, 1 tool calls")
    assert lines[-2].endswith("1 of 2 not done")
    gone = run("batch", "watch", str(out))
    assert (gone.returncode, "1 of 2 done (50 %); 1 of 1 solved" in gone.stderr) == (3, True)
