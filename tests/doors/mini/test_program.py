"""The program `mini` in a slot of Docker without a network: each of its model calls is answered by the driver."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hermes_agent import CommandCheck, Completion, Rollout, Scoring, ScriptedModel
from hermes_agent.gateway import Gateway
from hermes_agent.models.scripted import call
from hermes_exec import SandboxPool

pytestmark = pytest.mark.anyio
PROGRAM = [
    *("python3", "-m", "minisweagent", "-t", "{task}", "-y", "--exit-immediately"),
    *("-m", "openai/policy", "-c", "mini.yaml", "-o", "trajectory.json"),
]
ENV = {"MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1", "MSWEA_COST_TRACKING": "ignore_errors"}


def bash(command: str) -> Completion:
    return Completion("I run a command.", (call("bash", {"command": command}),))


@pytest.mark.parametrize(
    "steps", [["sort -o names.txt names.txt"], ["cat names.txt", "false", "sort -o names.txt names.txt"]]
)
async def test_mini_solves_a_task(docker_image: Callable[[str], str], steps: list[str]) -> None:
    submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    model = ScriptedModel([bash(command) for command in (*steps, submit)])
    rollout = Rollout(
        messages="Sort names.txt.",
        program=PROGRAM,
        env=ENV,
        deadline_s=300,
        gateway=Gateway(max_requests=20),
        files={"names.txt": "b\na\n"},
        scoring=Scoring(check=CommandCheck("cmp names.txt expected"), files={"expected": "a\nb\n"}, keep=["names.txt"]),
    )
    async with SandboxPool("docker", image=docker_image("mini"), network=False) as pool:
        result = await rollout.run(pool, model)
    episode = result.episode
    assert episode is not None, result.error
    assert (result.reward, result.finish) == (1.0, "answered"), (episode.program, result.failure)
    assert episode.turns == len(model.requests) == len(steps) + 1
    assert [message["role"] for message in episode.messages] == [
        "system", "user", *["assistant", "tool"] * len(steps), "assistant",
    ]  # fmt: skip
    assert "Sort names.txt." in episode.messages[1]["content"]
    assert episode.captured is not None
    assert len(episode.captured.roots) == 1
    assert [tool["function"]["name"] for tool in episode.tools] == ["bash"]
