"""inspect_ai: evals, and a command alone, beside its Docker sandbox."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import inspect_ai
from anyio.from_thread import start_blocking_portal
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessage, Model, ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash, text_editor
from inspect_ai.util import ComposeConfig, SandboxEnvironment, SandboxEnvironmentSpec
from inspect_ai.util._sandbox.docker import docker
from pydantic import BaseModel

from benchmarks.door_cases.turns import measure
from hermes_inspect import HermesConfig, HermesSandboxEnvironment

ROOT = Path(__file__).resolve().parents[2]
BUILT = subprocess.run([ROOT / ".ci" / "compose"], stdout=subprocess.PIPE, text=True, check=True)
os.environ["DOCKER_CONFIG"] = BUILT.stdout.strip()
IMAGE = sys.argv[1]
CALLS = 3
LOGS = tempfile.mkdtemp(prefix="inspect-logs-")
SERVICE = {"image": IMAGE, "command": "tail -f /dev/null", "init": True, "network_mode": "none"}
THEIRS = ComposeConfig.model_validate({"services": {"default": SERVICE}})
OURS = HermesConfig(backend="docker", image=IMAGE, network=False, slots_per_sandbox=8)


async def _accept_older_engines() -> None:
    """Take the place of the check for Docker 24, which this comparison does not need."""


docker.validate_prereqs = _accept_older_engines


def make_model(tool: str, arguments: dict[str, str]) -> Model:
    """Return a model that makes this call in each of the first turns."""

    def answer(messages: list[ChatMessage], *_: object) -> ModelOutput:
        turn = sum(message.role == "assistant" for message in messages)
        output = ModelOutput.for_tool_call("mockllm/model", tool, arguments)
        if turn == CALLS:
            output = ModelOutput.from_content("mockllm/model", "done")
        output.usage = ModelUsage()  # otherwise inspect_ai downloads a tokenizer
        return output

    return get_model("mockllm/model", custom_outputs=answer, memoize=False)


def evaluate(name: str, config: BaseModel, model: Model, samples: int = 1) -> None:
    """Run samples at once, each with a file, a setup script and three calls of a tool."""
    setup = "echo b >prepared"
    task = inspect_ai.Task(
        dataset=[Sample("work", id=number + 1, files={"given": "a"}, setup=setup) for number in range(samples)],
        solver=[use_tools(bash(), text_editor()), generate()],
        sandbox=SandboxEnvironmentSpec(name, config),
    )
    (log,) = inspect_ai.eval(task, model=model, display="none", log_dir=LOGS, max_samples=4, max_sandboxes=4)
    assert log.status == "success", log.error


def measure_eval(what: str, model: Model, samples: int, repetitions: int) -> None:
    """Measure an eval on both sandboxes."""
    ours, theirs = ("hermes", OURS, model, samples), ("docker", THEIRS, model, samples)
    measure(what, lambda: evaluate(*ours), lambda: evaluate(*theirs), repetitions)


measure_eval("an eval of four samples with bash", make_model("bash", {"command": "cat given prepared"}), 4, 3)
view = {"command": "view", "path": "/etc/hostname"}
measure_eval("an eval of a sample with text_editor", make_model("text_editor", view), 1, 2)


def run(environment: SandboxEnvironment) -> None:
    """Run a command."""
    assert portal.call(environment.exec, ["echo", "hi"]).stdout == "hi\n"


async def start(environment: type[SandboxEnvironment], config: BaseModel) -> SandboxEnvironment:
    """Return the sandbox of a sample."""
    await environment.task_init("benchmark", config)
    return next(iter((await environment.sample_init("benchmark", config, {})).values()))


async def end(sandbox: SandboxEnvironment, config: BaseModel) -> None:
    """End the sandbox of a sample."""
    await type(sandbox).sample_cleanup("benchmark", config, {"default": sandbox}, False)


with start_blocking_portal() as portal:
    ours = portal.call(start, HermesSandboxEnvironment, OURS)
    theirs = portal.call(start, docker.DockerSandboxEnvironment, THEIRS)
    try:
        measure("a command", lambda: run(ours), lambda: run(theirs), 20)
    finally:
        portal.call(end, ours, OURS)
        portal.call(end, theirs, THEIRS)
