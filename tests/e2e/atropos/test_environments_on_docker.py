"""The environments with images, through their command lines, with a model that knows the solutions."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hermes_atropos.datasets import SHIPPED, data_directory
from hermes_atropos.envs.terminalbench_2.tasks import load_tasks
from tests.e2e.atropos.inference_server import PolicyServer, call, load, read_groups, serving
from tests.e2e.atropos.swe.agents import instances
from tests.e2e.atropos.trainer import flags, run

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(600)]


def oracle(solutions: Mapping[str, str], idle: str = "\0") -> Callable[[str], str]:
    """A model that runs the command of the text that its prompt has, and none where `idle` is in it."""

    def policy(prompt: str) -> str:
        if "<|im_start|>tool" in prompt or idle in prompt:
            return "I am done."
        return next(call("terminal", command=does) for text, does in solutions.items() if text in prompt)

    return policy


def of_directories(environment: str) -> dict[str, str]:
    """The solutions of the shipped tasks, by their instructions."""
    directories = [path.parent for path in data_directory(environment).glob("*/instruction.md")]
    return {
        (directory / "instruction.md").read_text().strip(): (directory / "solution" / "solve.sh").read_text()
        for directory in directories
    }


def test_terminalbench_2_is_evaluated(docker_image: Callable[[str], str], tokenizer: Path, tmp_path: Path) -> None:
    tasks = load_tasks(SHIPPED, "test")
    unsolved = tasks[0]
    evaluation = tmp_path / "eval"
    more = (
        "--env.backend", "docker", "--env.dataset_name", "shipped", "--env.base_image", docker_image("debian"),
        "--env.data_dir_to_save_evals", str(evaluation), "--env.max_token_length", "32000",
    )  # fmt: skip
    with serving(
        PolicyServer(load(tokenizer), oracle(of_directories("terminalbench_2"), unsolved.instruction))
    ) as server:
        code, said = run("evaluate", *flags(tokenizer, server.url, *more), name="terminalbench_2", within_s=300)
        asked = len(server.bodies)
        again, _ = run("evaluate", *flags(tokenizer, server.url, *more), name="terminalbench_2", within_s=300)
    assert (code, again) == (0, 0), said
    assert len(server.bodies) == asked
    samples = read_groups(evaluation / "samples.jsonl")
    assert {one["key"]: one["reward"] for one in samples} == {task.name: float(task is not unsolved) for task in tasks}
    metrics = json.loads((evaluation / "metrics.json").read_text())["results"]["all"]
    assert metrics["eval/pass_rate"] == pytest.approx((len(tasks) - 1) / len(tasks))
    assert unsolved.category in said


def test_endless_terminals_in_process(docker_image: Callable[[str], str], tokenizer: Path, tmp_path: Path) -> None:
    groups = tmp_path / "groups.jsonl"
    more = (
        "--env.backend", "docker", "--env.use_dataset", "false", "--env.base_image", docker_image("debian"),
        "--env.total_steps", "9", "--env.eval_split_ratio", "0", "--env.slots_per_sandbox", "4",
        "--env.network", "false", "--env.data_path_to_save_groups", str(groups), "--env.max_token_length", "32000",
    )  # fmt: skip
    with serving(PolicyServer(load(tokenizer), oracle(of_directories("endless_terminals")))) as server:
        code, said = run("process", *flags(tokenizer, server.url, *more), name="endless_terminals", within_s=400)
    assert code == 0, said
    assert [group["scores"] for group in read_groups(groups)] == [[1.0, 1.0]] * 9


@pytest.mark.whole
@pytest.mark.parametrize(
    "backend",
    [
        "local",
        "docker",
        pytest.param("nomad", marks=pytest.mark.nomad),
        pytest.param("modal", marks=pytest.mark.modal),
    ],
)
def test_swe_smith_oracle_by_the_command_of_older_environments(
    backend: str,
    request: pytest.FixtureRequest,
    docker_image: Callable[[str], str],
    tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = tmp_path / "groups.jsonl"
    mended = {one.problem_statement: f"printf %s {shlex.quote(one.patch)} | git apply -R" for one in instances()}
    image = docker_image("debian")
    more: tuple[str, ...] = ("--env.slots_per_sandbox", "10", "--env.min_sandboxes", "1")
    if backend == "docker":
        more += ("--env.image", image)
    elif backend == "nomad":
        options = request.getfixturevalue("nomad_agent").options()
        monkeypatch.setenv("NOMAD_TOKEN", options["token"])
        more = ("--env.nomad_address", options["address"], "--env.sandbox_image", image)
        more += ("--env.slots_per_container", "10", "--env.min_containers", "1", "--env.purge_job_on_start", "true")
    elif backend == "modal":
        request.getfixturevalue("modal_server")
        more = ("--env.modal_image", image, "--env.modal_slots_per_sandbox", "10", "--env.modal_min_sandboxes", "1")
    more += (
        "--env.use_wandb", "false", "--env.total_steps", "2", "--env.max_items", "2", "--env.tool_pool_mode", backend,
        "--env.data_path_to_save_groups", str(groups), "--env.max_token_length", "32000",
    )  # fmt: skip
    with serving(PolicyServer(load(tokenizer), oracle(mended))) as server:
        code, said = run(
            "process", *flags(tokenizer, server.url, *more, group_size=1), name="swe_smith_oracle", within_s=500
        )
    assert code == 0, said
    assert [group["scores"] for group in read_groups(groups)] == [[1.0]] * 2


def test_a_test_that_hangs_is_no_reward(docker_image: Callable[[str], str], tokenizer: Path, tmp_path: Path) -> None:
    task = tmp_path / "tasks" / "task_1"
    for name, text in {
        "instruction.md": "Do nothing.",
        "environment/Dockerfile": f"FROM {docker_image('debian')}\n",
        "environment/task.json": "{}",
        "tests/test_final_state.py": "import time\n\n\ndef test_it():\n    time.sleep(1000)\n",
    }.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    groups = tmp_path / "groups.jsonl"
    more = (
        "--env.backend", "docker", "--env.tasks_base_dir", str(tmp_path / "tasks"), "--env.eval_split_ratio", "0",
        "--env.test_timeout_s", "2", "--env.max_rerolls", "1", "--env.max_failed_groups", "2",
        "--env.data_path_to_save_groups", str(groups),
    )  # fmt: skip
    with serving(PolicyServer(load(tokenizer), lambda _: "I am done.")) as server:
        code, said = run("process", *flags(tokenizer, server.url, *more), name="endless_terminals")
    assert code == 3, said
    assert "group 1: infra: CheckFailed: the test took longer than 2 s (rerolls: 1)" in said
    assert not groups.exists()
