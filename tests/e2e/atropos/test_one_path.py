"""The command `agent`, a batch run and an environment do the same with a model: one rollout, one loop, one toolbox."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio
import pytest

from hermes_agent import Message
from hermes_agent.trajectories.sharegpt import sharegpt
from hermes_atropos.envs.terminal_test import FileTask, TerminalTestEnv
from hermes_batch import BatchConfig, read_records, run_batch
from tests.e2e.atropos.inference_server import PolicyServer, call, load, make_env, process, serving

pytestmark = pytest.mark.anyio
PROMPT = "Find out what is there."


def policy(prompt: str) -> str:
    answered = prompt.count("<|im_start|>tool")
    if answered == 0:
        return (
            "I look.\n"
            + call("terminal", command="pwd; mkdir a && cd a && echo é > b; exit 3")
            + call("terminal", command="ls")
        )
    if answered == 2:
        return call("read_file", path="a/b") + call("no_such_tool", x=1) + call("terminal", wrong=1)
    if answered == 5:
        return call("write_file", path="c", content="1\n") + call("search_files", pattern="é", path=".")
    return "<think>\nenough\n</think>\n\nThere is é."


class OneTask(TerminalTestEnv):
    async def get_next_item(self) -> FileTask:
        return FileTask(PROMPT, "a/c", "1")  # the tools of files follow the terminal


async def test_the_same_model_gives_the_same_conversation(tokenizer: Path, tmp_path: Path) -> None:
    with serving(PolicyServer(load(tokenizer), policy, "openai")) as server:
        path = str(tmp_path / "groups.jsonl")
        env = make_env(
            OneTask, tokenizer, server.url, server_type="openai", group_size=1, data_path_to_save_groups=path,
            max_agent_turns=10,
        )  # fmt: skip
        (group,) = await process(env, 1)
        (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": PROMPT}) + "\n")
        out = tmp_path / "run"
        prompts = tmp_path / "prompts.jsonl"
        config = BatchConfig(dataset=prompts, out=out, model="default", base_url=server.url, parser="hermes")
        await run_batch(config)
        command = [
            sys.executable, "-m", "hermes_exec.cli.main", "agent", PROMPT, "--json", "-m", "default",
            "--base-url", server.url, "--parser", "hermes",
        ]  # fmt: skip
        done = await anyio.run_process(command, check=False)
        assert done.returncode == 0, done.stderr.decode()
    by_agent: list[Message] = json.loads(done.stdout)["messages"]
    (record,) = read_records(out)
    tools = server.bodies[0]["tools"]
    assert [body["tools"] for body in server.bodies] == [tools] * len(server.bodies)
    in_batch = record["conversations"]
    assert sharegpt(by_agent, tools) == in_batch
    assert sharegpt(group["messages"][0], tools) == in_batch
    assert group["scores"] == [1.0]
    assert len(server.bodies) == 3 * 4
