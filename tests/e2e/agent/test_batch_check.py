"""`batch check`: which rows of a dataset a run could not score, found without a model."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_agent import Episode
from hermes_batch import CheckConfig, CheckReport, Task, check_dataset, run_display
from hermes_exec import Slot
from hermes_exec.errors import ConfigError, ImageError
from tests.conftest import BackendCase, require_engine
from tests.e2e.agent.test_batch_run import children_of
from tests.e2e.agent.test_commands import ROOT, run
from tests.unit.batch.exporting import CommandLine

pytestmark = pytest.mark.anyio


def dataset(directory: Path, *rows: dict[str, Any]) -> Path:
    path = directory / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": "p", **row}) + "\n" for row in rows))
    return path


async def check(directory: Path, *rows: dict[str, Any], **settings: Any) -> CheckReport:
    return await check_dataset(CheckConfig(dataset=dataset(directory, *rows), workers=3, **settings))


def found(report: CheckReport) -> dict[str, str]:
    return {fault.id: fault.what for fault in report.faulty}


async def test_rows_that_are_right_have_no_fault(tmp_path: Path, backend: BackendCase) -> None:
    rows: list[dict[str, Any]] = [
        {"files": {"in/a": "right"}, "cwd": "in", "check": "grep right b", "solution": "cat a > ../b"},
        {"setup": "echo 1 > a", "env": {"B": "2"}, "check": '[ "$(cat a)" = 2 ]', "solution": 'echo "$B" > a'},
        {"keep": ["a"], "check_files": {"t.sh": "grep right a"}, "check": "sh t.sh", "solution": "echo right > a"},
        {"score_in": "slot", "check": "test -e /tmp/made", "solution": "touch /tmp/made"},
        {"score_in": "live", "check": "test -e a", "solution": "(sleep 0.3; touch a) & sleep 0.6"},
        {"check": "test -e a", "solution": "touch a; exit 3"},
        {"check": "test -e a"},
        {},
    ]
    report = await check(tmp_path, *rows, backend=backend.backend, image=backend.options.get("image"))
    assert (report.faulty, report.unknown, report.doubtful) == ([], [], [])
    assert (report.rows, report.checked, report.without_solution, report.without_check) == (8, 8, 1, 1)


async def test_every_fault_is_found_in_the_order_of_the_rows(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "good", "check": "test -e a", "solution": "touch a"},
        {"id": "always", "check": "echo yes", "solution": "true"},
        {"id": "never", "check": "echo no; exit 4", "solution": "echo tried; exit 5"},
        {"id": "setup", "setup": "echo broken; exit 7", "check": "false"},
        {"id": "slow check", "check": "sleep 30", "check_timeout_s": 0.5},
        {"id": "slow after", "check": "[ ! -e a ] || sleep 30; exit 1", "solution": "touch a", "check_timeout_s": 0.5},
        {"id": "slow solution", "check": "test -e a", "solution": "sleep 30; touch a"},
        {"id": "cwd", "cwd": "nowhere", "check": "false"},
        {"id": "outside keep", "keep": ["b"], "check": "test -e a", "solution": "touch a"},
    ]
    report = await check(tmp_path, *rows, solution_timeout_s=1.0)
    assert found(report) == {
        "always": "the check passes on the untouched slot",
        "never": "the check fails after the solution",
        "setup": "the slot cannot be set up",
        "slow check": "the check has no verdict on the untouched slot",
        "slow after": "the check has no verdict after the solution",
        "slow solution": "the check fails after the solution",
        "cwd": "the slot cannot be set up",
        "outside keep": "the check fails after the solution",
    }
    assert [fault.place for fault in report.faulty] == [f"line {n}" for n in range(2, 10)]
    outputs = {fault.id: fault.output for fault in report.faulty}
    assert outputs["always"] == "yes\n"
    assert outputs["never"] == "check: exit code 4\nno\nsolution: exit code 5\ntried"
    assert outputs["slow solution"].endswith("solution: longer than 1 s")
    assert "the setup ended with exit code 7; it printed: broken" in outputs["setup"]


async def test_check_without_its_program_is_doubtful_unless_a_solution_passes(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "missing", "check": "no-such-program"},
        {"id": "to be written", "check": "./program", "solution": "echo : > program; chmod +x program"},
        {"id": "shown", "check": "no-such-program", "solution": "true"},
    ]
    report = await check(tmp_path, *rows)
    (doubt,) = report.doubtful
    assert (doubt.id, doubt.what) == ("missing", "the check ends with exit code 127: does it find its programs?")
    assert found(report) == {"shown": "the check fails after the solution"}


async def test_scorer_takes_the_place_of_the_checks(tmp_path: Path) -> None:
    async def score(slot: Slot, episode: Episode, task: Task) -> float:
        if task.id == "raises":
            raise ValueError("broken")
        return float(task.id == "always" or await slot.files.exists("a"))

    rows: list[dict[str, Any]] = [
        {"id": "good", "solution": "touch a"},
        {"id": "open"},
        {"id": "always", "solution": "touch a"},
        {"id": "never", "solution": "touch b", "check": "true"},
        {"id": "raises"},
    ]
    report = await check(tmp_path, *rows, scorer=score)
    assert found(report) == {
        "always": "the check passes on the untouched slot",
        "never": "the check fails after the solution",
        "raises": "the row cannot be scored on the untouched slot",
    }
    always, never, raises = (fault.output for fault in report.faulty)
    assert always == "reward 1"
    assert never == "check: reward 0\nsolution: exit code 0"
    assert "the scorer raised ValueError: broken" in raises
    assert (report.without_check, report.without_solution) == (0, 2)


async def test_secrets_are_masked_in_faults(tmp_path: Path) -> None:
    row = {"check": 'echo "$TOKEN"; false', "solution": 'echo "$TOKEN"'}
    report = await check(tmp_path, row, backend_options={"secrets": {"TOKEN": "hush-hush-hush"}})
    assert report.faulty[0].output == "check: exit code 1\n***\nsolution: exit code 0\n***"


async def test_row_whose_sandboxes_die_is_not_checked(tmp_path: Path) -> None:
    others = children_of(os.getpid())  # servers of other tests

    async def kill_sandboxes() -> None:
        while True:
            await anyio.sleep(0.2)
            for pid in children_of(os.getpid()) - others:
                os.kill(pid, signal.SIGKILL)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kill_sandboxes)
        report = await check(tmp_path, {"id": "dies", "check": "sleep 30", "check_timeout_s": 60})
        tasks.cancel_scope.cancel()
    assert report.faulty == []
    (unknown,) = report.unknown
    assert (unknown.id, unknown.what) == ("dies", "not checked")
    assert unknown.output


@pytest.mark.docker
async def test_images_and_their_programs_are_checked(tmp_path: Path, docker_image: Callable[[str], str]) -> None:
    require_engine("docker")
    busybox, nowhere = docker_image("busybox"), "hermes-exec-test/nowhere:1"
    solved: dict[str, Any] = {"check": "test -e a", "solution": "touch a"}
    rows: list[dict[str, Any]] = [
        {"id": "first", "image": nowhere, **solved},
        {"id": "good", "image": busybox, **solved},
        {"id": "python", "image": busybox, "check": "python3 -c 'open(\"a\")'", "solution": "touch a"},
        {"id": "last", "image": nowhere},
    ]
    options = {"pull_policy": "never"}
    report = await check(tmp_path, *rows, backend="docker", backend_options=options)
    assert found(report) == {
        "first": "the image is not available",
        "python": "the check fails after the solution",
        "last": "the image is not available",
    }
    assert "nowhere" in report.faulty[0].output
    assert "python3: not found" in report.faulty[1].output
    report = await check(tmp_path, *rows, backend="docker", image=busybox, backend_options=options)
    assert [*found(report)] == ["first", "python", "last"]
    with pytest.raises(ImageError, match="nowhere"):
        await check(tmp_path, solved, backend="docker", image=nowhere, backend_options=options)


@pytest.mark.docker
async def test_image_whose_registry_is_away_is_not_checked(tmp_path: Path, docker_image: Callable[[str], str]) -> None:
    require_engine("docker")
    image = docker_image("busybox")
    report = await check(tmp_path, {"id": "away", "image": "localhost:1/x:1"}, {}, backend="docker", image=image)
    assert (found(report), [fault.id for fault in report.unknown]) == ({}, ["away"])
    assert "registry is unreachable" in report.unknown[0].output


async def test_dataset_is_validated_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 2: image: the backend 'local' has no images"):
        await check(tmp_path, {}, {"image": "x"})


def test_command_checks_the_examples() -> None:
    done = run("batch", "check", str(ROOT / "examples" / "tasks.jsonl"), "--workers", "8", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["rows"], report["faulty"], report["without_solution"]) == (24, [], 0)


def test_command_prints_faulty_rows_and_exits_with_1(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "always", "check": "echo yes"},
        {"id": "slow", "check": "sleep 9"},
        {"id": "setup", "setup": "sleep 9"},
        {"id": "solution", "check": "[ -e a ]", "solution": "sleep 9; touch a", "score_in": "slot"},
        {"id": "open", "check": "nowhere"},
        {"id": "unseen", "check": "true"},
    ]
    path = str(dataset(tmp_path, *({"level": 1, "q": "x", **row, "prompt": None} for row in rows)))
    flags = ("--field", "prompt=q", "--extra", "metadata", "--limit", "5", "--score-in", "live", "--strict")
    limits = ("--check-timeout", "1", "--setup-timeout", "1", "--solution-timeout", "1", "--workers", "5")
    done = run("batch", "check", path, "-b", "local", *flags, *limits)
    assert done.returncode == 1, done.stderr
    for text in ("line 1", "always", "passes on the untouched slot", "longer than 1 s", "cannot be set up", "127"):
        assert text in done.stdout
    assert "unseen" not in done.stdout
    assert "rows: 5, faulty: 4, not checked: 0, doubtful: 1" in done.stderr
    assert "without a solution: 3" in done.stderr
    assert "without a check: 1" in done.stderr


def test_command_scores_by_a_function(tmp_path: Path) -> None:
    scorer = tmp_path / "scorer.py"
    scorer.write_text("def score(slot, episode):\n    return slot.files.exists('a')\n")
    path = str(dataset(tmp_path, {"id": "good", "solution": "touch a"}, {"id": "bad", "solution": "touch b"}))
    done = run("batch", "check", path, "--scorer", f"{scorer}:score", "--json")
    assert (done.returncode, [fault["id"] for fault in json.loads(done.stdout)["faulty"]]) == (1, ["bad"]), done.stderr
    wrong = run("batch", "check", path, "--scorer", f"{scorer}:scor")
    assert wrong.returncode == 2
    assert "scor" in wrong.stderr


def test_command_checks_selected_rows_in_slots_of_a_configuration(tmp_path: Path) -> None:
    config = tmp_path / "pool.yaml"
    config.write_text("backend: local\nenv: {A: '1'}\nprofiles: {other: {env: {A: '2'}}}\n")
    path = str(dataset(tmp_path, *({"id": f"r{n}", "check": f'[ "$A$(cat b)" = {n} ]'} for n in range(24))))
    slots = ("--config", str(config), "--profile", "other", "--option", "slot_setup=echo 1 > b", "--json")
    done = run("batch", "check", path, "--ids", "r1,r2,r11,r21", *slots)
    report = json.loads(done.stdout)
    assert (done.returncode, report["rows"]) == (1, 4), done.stderr
    assert [fault["id"] for fault in report["faulty"]] == ["r21"]
    part = ("--shuffle", "1", "--offset", "4", "--limit", "8", "--shard", "2/4")
    assert json.loads(run("batch", "check", path, *part, *slots).stdout)["rows"] == 2


def test_progress_is_logged_with_a_clock_where_there_is_no_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_display, "LOG_INTERVAL_S", 0.2)
    rows = [{"check": "test -e a", "solution": "touch a"}, {"check": "test -e a", "solution": "sleep 2; touch a"}]
    done = CommandLine(capfd, monkeypatch)("check", dataset(tmp_path, *rows), "--workers", "1")
    assert done.code == 0
    assert re.search(r"^\d\d:\d\d:\d\d rows: 1 of 2, faulty: 0, not checked: 0, doubtful: 0$", done.err, re.MULTILINE)
    assert done.err.endswith("\nrows: 2, faulty: 0, not checked: 0, doubtful: 0\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.jsonl"], "cannot read the dataset nowhere.jsonl"),
        (["examples/tasks.jsonl", "--solution-timeout", "0"], "solution_timeout_s: input should be greater than 0"),
        (["examples/tasks.jsonl", "--field", "promt=x"], "a row has no entry 'promt'"),
        (["examples/tasks.jsonl", "-b", "docker"], "line 1: image: the backend 'docker' needs one"),
        (["examples/tasks.jsonl", "-b", "dokcer"], "docker"),
        (["examples/tasks.jsonl", "--ids", "nobody"], "nobody"),
        (["examples/tasks.jsonl", "--shard", "5/4"], "shard"),
        (["examples/tasks.jsonl", "--workers", "0"], "workers"),
    ],
)
def test_wrong_usage_of_the_command_exits_with_2(arguments: list[str], message: str) -> None:
    done = run("batch", "check", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
