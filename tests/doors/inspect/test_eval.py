"""Evals with a scripted model, whose tools work in slots."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import inspect_ai
import pytest
from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, EvalSample
from inspect_ai.model import ChatMessage, Model, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, use_tools
from inspect_ai.tool import bash, bash_session, python, text_editor
from inspect_ai.util import SandboxEnvironmentSpec, sandbox

from hermes_inspect import HermesConfig, HermesSandboxEnvironment
from tests.support.doors import ROOT

Call = tuple[str, dict[str, Any]]
OF_INSPECT = "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
"""Warnings of inspect_ai itself."""
pytestmark = [pytest.mark.whole, *map(pytest.mark.filterwarnings, OF_INSPECT)]


def scripted(*calls: Call) -> Model:
    """A model that makes these calls in each conversation, one a turn."""

    def answer(messages: list[ChatMessage], *_: object) -> ModelOutput:
        turn = sum(message.role == "assistant" for message in messages)
        if turn >= len(calls):
            output = ModelOutput.from_content("mockllm/model", f"done: {messages[-1].text}")
        else:
            output = ModelOutput.for_tool_call("mockllm/model", *calls[turn])
        output.usage = ModelUsage()  # otherwise inspect_ai downloads a tokenizer
        return output

    return get_model("mockllm/model", custom_outputs=answer)


@scorer(metrics=[accuracy()])
def runs_in_sandbox() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        result = await sandbox().exec(["cat", "answer"])
        return Score(value=1 if result.stdout.strip() == target.text else 0)

    return score


def run(task: Task | str, model: Model, logs: Path, **options: Any) -> EvalLog:
    (log,) = inspect_ai.eval(task, model=model, display="none", log_dir=str(logs), **options)
    return log


def results(sample: EvalSample) -> list[str]:
    return [
        message.error.message if message.error else message.text
        for message in sample.messages
        if message.role == "tool"
    ]


def samples_of(log: EvalLog) -> dict[str, EvalSample]:
    return {str(sample.id): sample for sample in log.samples or []}


def containers(pid: int) -> str:
    command = ["docker", "ps", "-a", "--format", "{{.ID}} {{.Status}}", "--filter", f"label=hermes-exec.pid={pid}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def left_containers(pid: int | None = None) -> str:
    """The containers of a process, when their removal had ten seconds."""
    until = time.monotonic() + 10
    while (left := containers(pid or os.getpid())) and time.monotonic() < until:
        time.sleep(0.1)
    return left


FOUR_TOOLS: tuple[Call, ...] = (
    ("bash", {"command": "cat input.txt prepared.txt; pwd"}),
    ("python", {"code": "print(sum(range(9)), open('input.txt').read())"}),
    ("text_editor", {"command": "create", "path": "/workspace/answer", "file_text": "fourty\n"}),
    ("text_editor", {"command": "str_replace", "path": "/workspace/answer", "old_str": "fourty", "new_str": "forty"}),
    ("bash_session", {"action": "type_submit", "input": "export ANSWER=two; cd /workspace"}),
    ("bash_session", {"action": "type_submit", "input": "echo $ANSWER >>answer; cat answer"}),
)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("slots", [8, 1])
def test_four_tools_work_in_slot(slots: int, docker_image: Callable[[str], str], tmp_path: Path) -> None:
    config = tmp_path / "pool.yaml"
    config.write_text(f"backend: docker\nimage: {docker_image('debian')}\nslots_per_sandbox: {slots}\n")
    task = Task(
        dataset=[
            Sample(
                "work", target="forty\ntwo", files={"input.txt": "given"}, setup="echo prepared >prepared.txt", id="one"
            )
        ],
        solver=[use_tools(bash(), python(), text_editor(), bash_session()), generate()],
        scorer=runs_in_sandbox(),
        sandbox=("hermes", str(config)),
    )
    log = run(task, scripted(*FOUR_TOOLS), tmp_path)
    assert log.status == "success", log.error
    (sample,) = log.samples or []
    outputs = results(sample)
    assert outputs[0] == "givenprepared\n/workspace\n"
    assert outputs[1] == "36 given\n"
    assert "forty\r\ntwo" in outputs[5].replace("\r\n", "\n").replace("\n", "\r\n")
    assert sample.scores
    assert sample.scores["runs_in_sandbox"].value == 1
    assert not left_containers()


def test_bad_image_fails_its_sample_alone(docker_image: Callable[[str], str], tmp_path: Path) -> None:
    def sample(name: str, image: str) -> Sample:
        config = HermesConfig(backend="docker", image=image, pull_policy="never")
        return Sample("work", target=name, id=name, sandbox=SandboxEnvironmentSpec("hermes", config))

    good = docker_image("debian")
    task = Task(
        dataset=[sample("a", good), sample("bad", "no-such-image:1"), sample("b", good)],
        solver=[use_tools(bash()), generate()],
        scorer=runs_in_sandbox(),
    )
    log = run(task, scripted(("bash", {"command": "echo done"})), tmp_path, fail_on_error=False)
    samples = samples_of(log)
    assert samples["bad"].error is not None
    assert "no-such-image:1" in samples["bad"].error.message
    assert [results(samples[name])[0] for name in "ab"] == ["done\n", "done\n"]
    assert not left_containers()


def test_samples_of_other_image_wait_without_time_limit(docker_image: Callable[[str], str], tmp_path: Path) -> None:
    def sample(name: str, image: str) -> Sample:
        config = HermesConfig(
            backend="docker", image=docker_image(image), max_sandboxes=1, slots_per_sandbox=4, acquire_timeout_s=1
        )
        return Sample("work", target=name, id=name, sandbox=SandboxEnvironmentSpec("hermes", config))

    task = Task(
        dataset=[sample("a", "debian"), sample("b", "busybox"), sample("c", "debian")],
        solver=[use_tools(bash()), generate()],
        scorer=runs_in_sandbox(),
    )
    log = run(task, scripted(("bash", {"command": "sleep 4"})), tmp_path, fail_on_error=False)
    assert {name: sample.error for name, sample in samples_of(log).items()} == dict.fromkeys("abc")


@solver
def end(what: str) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        if state.sample_id == "lost":
            own = sandbox().as_type(HermesSandboxEnvironment)
            if what == "sandbox":
                await anyio.run_process(["docker", "kill", own._slot.sandbox])
            else:
                await own._pool.aclose()
        return state

    return solve


@pytest.mark.parametrize("what", ["sandbox", "pool"])
def test_lost_slot_fails_its_sample_alone(what: str, docker_image: Callable[[str], str], tmp_path: Path) -> None:
    config = HermesConfig(backend="docker", image=docker_image("debian"), max_sandboxes=2)
    task = Task(
        dataset=[Sample("work", target=name, id=name) for name in ("a", "lost", "b", "c")],
        solver=[use_tools(bash()), end(what), generate()],
        scorer=runs_in_sandbox(),
        sandbox=SandboxEnvironmentSpec("hermes", config),
    )
    model = scripted(("bash", {"command": "echo done"}))
    log = run(task, model, tmp_path, fail_on_error=False, max_samples=1)
    samples = samples_of(log)
    assert not samples["lost"].scores
    assert samples["lost"].error is not None
    assert [results(samples[name])[0] for name in "abc"] == ["done\n"] * 3
    assert not left_containers()


def test_more_samples_than_slots_wait_without_limit(tmp_path: Path) -> None:
    config = HermesConfig(backend="local", slots_per_sandbox=1, acquire_timeout_s=0.5)
    task = Task(
        dataset=[Sample("work", target="", id=str(number)) for number in range(4)],
        solver=[use_tools(bash()), generate()],
        scorer=runs_in_sandbox(),
        sandbox=SandboxEnvironmentSpec("hermes", config),
    )
    log = run(task, scripted(("bash", {"command": "sleep 1; echo $PPID"})), tmp_path, max_samples=4)
    assert log.status == "success", log.error
    assert len(log.samples or []) == 4


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_example_of_page_runs(
    backend: str, docker_image: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSPECT_ASYNC_BACKEND", backend)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "doors" / "inspect.md").read_text("utf-8")
    blocks = {language: page.partition(f"```{language}\n")[2].partition("```")[0] for language in ("yaml", "python")}
    (tmp_path / "pool.yaml").write_text(blocks["yaml"].replace("python:3.12", docker_image("debian")))
    (tmp_path / "count.py").write_text(blocks["python"])
    log = run("count.py", scripted(("bash", {"command": "wc -l <words.txt"})), tmp_path)
    assert log.status == "success", log.error
    assert log.results
    assert log.results.scores[0].metrics["accuracy"].value == 1
    assert not left_containers()


def test_interrupted_eval_leaves_nothing(docker_image: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(f"backend: docker\nimage: {docker_image('debian')}\n")
    (tmp_path / "work.py").write_text(
        "from inspect_ai import Task, task\n"
        "from inspect_ai.dataset import Sample\n"
        "@task\n"
        "def work():\n"
        "    return Task(dataset=[Sample('work', setup='sleep 60')], sandbox=('hermes', 'pool.yaml'))\n"
    )
    program = [sys.executable, "-m", "inspect_ai", "eval", "work.py", "--model", "mockllm/model", "--display", "plain"]
    with subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        until = time.monotonic() + 60
        while not containers(process.pid):
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert b"interrupted" in output
    assert not left_containers(process.pid)
