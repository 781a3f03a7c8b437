"""Trials of harbor in slots: its own program, its oracle and nop agents, tasks of each kind, and wrong options."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.doors.harbor.tasks import write_numbered_tasks, write_task, write_tasks

pytestmark = pytest.mark.whole
OWN_ROOTS = ("--ek", "slots_per_sandbox=8", "--ek", "max_sandboxes=2")
EXCLUSIVE = ()


def run(directory: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, dict[str, Any]]]:
    """Run a job; return the program and the result of each trial by the name of its task."""
    command = ["harbor", "run", "-e", "hermes_harbor:HarborEnvironment", "--yes", "--job-name", "job", "-o", "jobs"]
    env = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        [*command, *arguments], cwd=directory, env=env, capture_output=True, text=True, timeout=170, check=False
    )
    results = [json.loads(path.read_text()) for path in (directory / "jobs" / "job").glob("*/result.json")]
    return done, {result["trial_name"].partition("__")[0]: result for result in results}


def reward(result: dict[str, Any]) -> float:
    assert result["exception_info"] is None, result["exception_info"]
    return float(result["verifier_result"]["rewards"]["reward"])


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def image(docker_image: Callable[[str], str]) -> str:
    return docker_image("debian")


@pytest.mark.parametrize("mode", [EXCLUSIVE, OWN_ROOTS], ids=["exclusive", "own-roots"])
def test_oracle_solves_tasks_of_each_kind(tmp_path: Path, image: str, mode: tuple[str, ...]) -> None:
    write_tasks(tmp_path / "tasks", image)
    done, results = run(tmp_path, "-p", "tasks", "-a", "oracle", "-n", "5", *mode)
    assert {name: reward(result) for name, result in results.items()} == dict.fromkeys(
        ("workdir", "artifacts", "users", "limits", "verifier"), 1.0
    ), done.stdout + done.stderr
    (artifacts,) = (tmp_path / "jobs" / "job").glob("artifacts__*/artifacts")
    names = {path.name for path in artifacts.rglob("*") if not path.is_dir()}
    assert {"kept.txt", "link"} <= names
    assert not {"x.log", "pipe"} & names


@pytest.mark.parametrize("mode", [EXCLUSIVE, OWN_ROOTS], ids=["exclusive", "own-roots"])
@pytest.mark.parametrize(("agent", "expected"), [("oracle", 1.0), ("nop", 0.0)])
def test_twenty_trials_have_the_reward_of_their_agent(
    tmp_path: Path, image: str, mode: tuple[str, ...], agent: str, expected: float
) -> None:
    write_numbered_tasks(tmp_path / "tasks", image, 20)
    done, results = run(tmp_path, "-p", "tasks", "-a", agent, "-n", "8", *mode)
    assert [reward(result) for result in results.values()] == [expected] * 20, done.stdout + done.stderr


def test_failed_command_and_timeout_are_no_outages(tmp_path: Path, image: str) -> None:
    prebuilt = f'docker_image = "{image}"'
    write_task(tmp_path / "tasks", "fails", environment=prebuilt, solve="exit 3", check="false")
    slow = write_task(tmp_path / "tasks", "slow", environment=prebuilt, solve="sleep 100", check="false")
    (slow / "task.toml").write_text((slow / "task.toml").read_text().replace("timeout_sec = 60", "timeout_sec = 3"))
    done, results = run(tmp_path, "-p", "tasks", "-a", "oracle", "-n", "2")
    assert reward(results["fails"]) == 0.0, done.stdout + done.stderr
    assert results["slow"]["exception_info"]["exception_type"] in {"AgentTimeoutError", "RuntimeError"}


def test_wrong_image_ends_its_trial_alone(tmp_path: Path, image: str) -> None:
    good = {"solve": "touch /tmp/done", "check": "[ -e /tmp/done ]"}
    write_task(tmp_path / "tasks", "good", environment=f'docker_image = "{image}"', **good)
    write_task(tmp_path / "tasks", "bad", environment='docker_image = "no-such-image:1"', **good)
    write_task(tmp_path / "tasks", "broken", environment="", dockerfile=f"FROM {image}\nRUN exit 7\n", **good)
    done, results = run(tmp_path, "-p", "tasks", "-a", "oracle", "--ek", "pull_policy=never")
    assert reward(results["good"]) == 1.0, done.stdout + done.stderr
    for name in ("bad", "broken"):
        assert results[name]["exception_info"]["exception_type"] == "SandboxBuildFailedError"
    assert "no-such-image:1" in results["bad"]["exception_info"]["exception_message"]


def test_task_of_several_containers_is_refused_alone(tmp_path: Path, image: str) -> None:
    good = {"solve": "touch /tmp/done", "check": "[ -e /tmp/done ]"}
    write_task(tmp_path / "tasks", "good", environment=f'docker_image = "{image}"', **good)
    task = write_task(tmp_path / "tasks", "compose", environment="", dockerfile="FROM x", solve="true", check="true")
    (task / "environment" / "docker-compose.yaml").write_text("services: {main: {image: x}, other: {image: y}}\n")
    done, results = run(tmp_path, "-p", "tasks", "-a", "oracle")
    assert reward(results["good"]) == 1.0, done.stdout + done.stderr
    assert "one container" in results["compose"]["exception_info"]["exception_message"]


def test_task_without_image_is_refused_alone(tmp_path: Path, image: str) -> None:
    good = {"solve": "touch /tmp/done", "check": "[ -e /tmp/done ]"}
    write_task(tmp_path / "tasks", "good", environment=f'docker_image = "{image}"', **good)
    write_task(tmp_path / "tasks", "empty", environment="", **good)
    done, results = run(tmp_path, "-p", "tasks", "-a", "oracle")
    assert reward(results["good"]) == 1.0, done.stdout + done.stderr
    assert "no environment definition" in results["empty"]["exception_info"]["exception_message"]


def test_option_workdir_is_the_default_of_tasks(tmp_path: Path, image: str) -> None:
    def write(name: str, environment: str, workdir: str) -> None:
        prebuilt = f'docker_image = "{image}"\n{environment}'
        check = f'[ "$PWD" = {workdir} ]'
        write_task(tmp_path / "tasks", name, environment=prebuilt, solve=check, check=check)

    write("own", 'workdir = "/srv/own"', "/srv/own")
    write("default", "", "/srv/all")
    done, results = run(tmp_path, "-p", "tasks", "-a", "oracle", "--ek", "workdir=/srv/all")
    assert [reward(result) for result in results.values()] == [1.0, 1.0], done.stdout + done.stderr


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("--ek", "image=debian"), "each task names its own"),
        (("--ek", "backend=local"), "image='docker_image"),
        (("--ek", "backend=dokcer"), "docker"),
        (("--ek", "max_sandboxs=2"), "max_sandboxes"),
        (("--ek", "config=missing.yaml"), "missing.yaml"),
        (("--ek", "slots_per_sandbox=0"), "slots_per_sandbox"),
    ],
)
def test_wrong_option_ends_the_job_before_a_trial(
    tmp_path: Path, image: str, wrong: tuple[str, ...], message: str
) -> None:
    write_task(tmp_path / "tasks", "t", environment=f'docker_image = "{image}"', solve="true", check="true")
    done, results = run(tmp_path, "-p", "tasks", "-a", "oracle", *wrong)
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
    assert results == {}


def test_configuration_file_is_read(tmp_path: Path, image: str) -> None:
    (tmp_path / "pool.yaml").write_text("backend: docker\nenv: {FROM_FILE: here}\n")
    write_task(
        tmp_path / "tasks",
        "t",
        environment=f'docker_image = "{image}"',
        solve='echo "$FROM_FILE" > /tmp/f',
        check="grep -q here /tmp/f",
    )
    done, results = run(tmp_path, "-p", "tasks", "-a", "oracle", "--ek", "config=pool.yaml")
    assert reward(results["t"]) == 1.0, done.stdout + done.stderr


def test_no_container_is_left(tmp_path: Path, image: str) -> None:
    def containers() -> set[str]:
        command = ["docker", "ps", "-aq", "--filter", "label=hermes-exec.run-id=harbor-left"]
        return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

    write_task(tmp_path / "tasks", "t", environment=f'docker_image = "{image}"', solve="sleep 60", check="true")
    command = ["harbor", "run", "-e", "hermes_harbor:HarborEnvironment", "--yes", "-p", "tasks", "-a", "oracle"]
    program = subprocess.Popen(
        [*command, "--ek", "run_id=harbor-left"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: bool(containers()) or program.poll() is not None)
    assert program.poll() is None
    program.terminate()
    program.wait(60)
    wait_until(lambda: not containers())
