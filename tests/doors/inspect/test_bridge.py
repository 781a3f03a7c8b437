"""Agents that run in a slot without network and call the model of the eval over `sandbox_agent_bridge`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import inspect_ai
import pytest
from inspect_ai import Task
from inspect_ai.agent import Agent, AgentState, agent, sandbox_agent_bridge
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessage, ChatMessageTool, Model, ModelOutput, ModelUsage, get_model
from inspect_ai.util import SandboxEnvironmentSpec, sandbox

from hermes_inspect import HermesConfig

pytestmark = [
    pytest.mark.whole,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PROGRAM = """
import json, os, socket, subprocess, sys, time, urllib.error, urllib.request

PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}

def wait_for_bridge(port):
    until = time.monotonic() + 60
    while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < until:
        time.sleep(0.05)

def ask(messages):
    tool = {"name": "bash", "description": "run", "parameters": PARAMETERS}
    body = {"model": "inspect", "messages": messages, "tools": [{"type": "function", "function": tool}]}
    headers = {"content-type": "application/json", "authorization": "Bearer none"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers))
    except urllib.error.HTTPError as error:
        sys.exit(error.read().decode())
    return json.load(answer)["choices"][0]["message"]

wait_for_bridge(13131)
messages = [{"role": "user", "content": sys.argv[1]}]
while calls := (message := ask(messages)).get("tool_calls"):
    messages.append(message)
    for call in calls:
        command = json.loads(call["function"]["arguments"])["command"]
        output = subprocess.run(command, shell=True, capture_output=True, text=True).stdout
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
print(message["content"])
"""


def scripted() -> Model:
    """A model that makes one call and then answers with its result."""

    def answer(messages: list[ChatMessage], *_: object) -> ModelOutput:
        last = messages[-1]
        if isinstance(last, ChatMessageTool):
            output = ModelOutput.from_content("mockllm/model", f"It is {last.text.strip()}.")
        else:
            output = ModelOutput.for_tool_call("mockllm/model", "bash", {"command": f"echo {last.text} | wc -w"})
        output.usage = ModelUsage()  # otherwise inspect_ai downloads a tokenizer
        return output

    return get_model("mockllm/model", custom_outputs=answer)


@agent
def program_in_slot() -> Agent:
    async def execute(state: AgentState) -> AgentState:
        async with sandbox_agent_bridge(state) as bridge:
            await sandbox().write_file("agent.py", PROGRAM)
            result = await sandbox().exec(
                ["python3", "agent.py", state.messages[-1].text],
                env={"OPENAI_BASE_URL": f"http://127.0.0.1:{bridge.port}/v1"},
            )
            assert result.success, result.stderr
            return bridge.state

    return execute


@pytest.mark.parametrize("slots", ["local", "docker", "exclusive"])
def test_bridge_serves_program_in_slot(slots: str, docker_image: Callable[[str], str], tmp_path: Path) -> None:
    options: dict[str, Any] = {"backend": "local", "slots_per_sandbox": 2}
    if slots != "local":
        options = {"backend": "docker", "image": docker_image("debian")}
        options["slots_per_sandbox"] = 8 if slots == "docker" else 1
    config = HermesConfig(network=False, **options)
    task = Task(
        dataset=[Sample("one two three", id="a"), Sample("four five", id="b")],
        solver=program_in_slot(),
        sandbox=SandboxEnvironmentSpec("hermes", config),
    )
    (log,) = inspect_ai.eval(task, model=scripted(), display="none", log_dir=str(tmp_path), max_samples=2)
    assert log.status == "success", log.error
    answers = {sample.id: [(message.role, message.text) for message in sample.messages] for sample in log.samples or []}
    assert answers["a"][-1] == ("assistant", "It is 3.")
    assert answers["b"][-1] == ("assistant", "It is 2.")
    assert [role for role, _ in answers["a"]] == ["user", "assistant", "tool", "assistant"]
