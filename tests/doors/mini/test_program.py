"""The program `mini` in a slot of Docker without a network: each of its model calls is answered by the driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_agent import Completion, ScriptedModel
from hermes_agent.models.scripted import call

PAGE = Path(__file__).resolve().parents[3] / "docs" / "doors" / "mini.md"
MODEL = 'model = OpenAIModel("qwen3", base_url="http://localhost:8000/v1")'
IMAGE = "my-image-with-mini"


def bash(command: str) -> Completion:
    return Completion("I run a command.", (call("bash", {"command": command}),))


@pytest.mark.parametrize("commands", [[], ["cat names.txt", "false"]])
def test_block_of_the_documentation_runs(docker_image: Callable[[str], str], commands: list[str]) -> None:
    code = PAGE.read_text("utf-8").partition("```python\n")[2].partition("```")[0]
    for part in (MODEL, IMAGE):
        assert part in code
    submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    model = ScriptedModel([bash(command) for command in (*commands, "sort -o names.txt names.txt", submit)])
    names: dict[str, Any] = {"model": model}
    exec(code.replace(MODEL, "").replace(IMAGE, docker_image("mini")), names)
    result, episode = names["result"], names["result"].episode
    assert (result.reward, result.finish) == (1.0, "answered"), (episode, result.failure)
    assert episode.turns == len(model.requests) == len(commands) + 2
    assert [message["role"] for message in episode.messages] == [
        "system", "user", *["assistant", "tool"] * (len(commands) + 1), "assistant",
    ]  # fmt: skip
    assert "Sort names.txt in place." in episode.messages[1]["content"]
    assert len(episode.captured.roots) == 1
    assert [tool["function"]["name"] for tool in episode.tools] == ["bash"]
