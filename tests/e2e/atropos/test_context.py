"""What a reward may do in a slot, byte for byte; and rows of defects that environments before these had."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from hermes_agent import Episode
from hermes_atropos import SandboxSpec, ToolContext
from hermes_atropos.cli.commands import ENVIRONMENTS, load_environment
from hermes_atropos.envs.terminal_test import FileTask, TerminalTestEnv
from hermes_atropos.errors import EnvironmentMistake
from hermes_exec import SandboxPool
from tests.e2e.atropos.inference_server import PolicyServer, call, load, make_env, process, serving, solve

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ctx() -> AsyncIterator[ToolContext]:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        yield ToolContext(slot, meta={"a": 1})


async def test_files_of_any_size_and_name_come_and_go_as_they_are(ctx: ToolContext, tmp_path: Path) -> None:
    """E8: a download was cut at 50,000 characters, with success. E9: chunks of an upload shared a name."""
    data, name = os.urandom(3_000_000), "a b'$(touch x)\n.bin"
    (tmp_path / "up").write_bytes(data)

    async def around(number: int) -> None:
        await ctx.upload_file(str(tmp_path / "up"), f"{number}{name}")
        await ctx.download_file(f"{number}{name}", str(tmp_path / f"down{number}"))
        assert (tmp_path / f"down{number}").read_bytes() == data

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(around, number)
    assert not await ctx.slot.files.exists("x")


async def test_directories_come_and_go(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "up" / "sub").mkdir(parents=True)
    (tmp_path / "up" / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "up" / "sub" / "run.sh").chmod(0o755)
    await ctx.upload_dir(str(tmp_path / "up"), "there")
    await ctx.download_dir("there", str(tmp_path / "down"))
    assert (tmp_path / "down" / "sub" / "run.sh").read_text() == "#!/bin/sh\n"
    assert (tmp_path / "down" / "sub" / "run.sh").stat().st_mode & 0o777 == 0o755


async def test_tools_of_a_reward(ctx: ToolContext) -> None:
    """E10: search was always an error, for it called its argument `query`."""
    assert "error" not in await ctx.write_file("src/a.py", "needle = 1\n")
    assert "needle" in (await ctx.read_file("src/a.py"))["content"]
    assert "a.py" in json.dumps(await ctx.search("need.e"))
    done = await ctx.terminal("echo one; exit 3")
    assert (done["exit_code"], done["output"].strip()) == (3, "one")
    late = await ctx.terminal("sleep 30", timeout=1)
    assert late["exit_code"] == 124
    assert "error" in await ctx.call_tool("no_such_tool", {})
    outcome = await ctx.exec_tool("terminal", {"command": "false"})
    assert (outcome.exit_code, outcome.success) == (1, True) or (outcome.exit_code, outcome.success) == (1, False)
    assert (await ctx.cleanup()).left == 0
    assert ctx.meta == {"a": 1}


async def test_exec_tool_runs_bash_in_a_shell_of_its_own(ctx: ToolContext) -> None:
    command = {"command": "mkdir -p repo && cd repo && pwd; echo why >&2"}
    await ctx.exec_tool("bash", command)
    done = await ctx.exec_tool("bash", command, timeout=600)  # in the working directory again
    assert (done.success, done.output, done.error) == (True, f"{ctx.slot.workdir}/repo\n", "why\n")
    assert done.metadata == {"exit_code": 0, "timeout": False, "truncated": False}
    failed = await ctx.exec_tool("bash", {"command": "echo out; exit 3"})
    assert (failed.success, failed.output, failed.exit_code) == (False, "out\n", 3)


async def test_exec_tool_ends_a_command_after_its_timeout(ctx: ToolContext) -> None:
    late = await ctx.exec_tool("bash", {"command": "echo begun; sleep 30"}, timeout=0.5)
    assert (late.success, late.output, late.metadata["timeout"]) == (False, "begun\n", True)
    assert "longer than 0.5 s" in late.error
    assert (await ctx.exec_tool("terminal", {"command": "sleep 30"}, timeout=0.5)).exit_code == 124
    assert (await ctx.exec_tool("terminal", {"command": "true"}, timeout=7200)).success
    assert (await ctx.terminal("true", timeout=7200))["exit_code"] == 0


@pytest.mark.parametrize(
    ("name", "arguments"), [("bassh", {"command": "ls"}), ("bash", {"cmd": "ls"}), ("read_file", {}), ("terminal", [])]
)
async def test_exec_tool_refuses_a_call_that_no_work_explains(ctx: ToolContext, name: str, arguments: object) -> None:
    with pytest.raises(EnvironmentMistake, match="exec_tool: "):
        await ctx.exec_tool(name, cast("Any", arguments))


async def test_a_reward_does_not_hold_up_the_loop(ctx: ToolContext) -> None:
    """E7: each call blocked the running loop on a thread."""

    async def tick() -> None:
        for _ in range(20):
            await anyio.sleep(0.01)
        await ctx.slot.files.write_text("ticked", "")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        waited = await ctx.terminal("until [ -e ticked ]; do sleep 0.05; done", timeout=60)
    assert waited["exit_code"] == 0


async def test_a_completion_has_what_is_left_of_the_context_and_not_the_whole(tokenizer: Path, tmp_path: Path) -> None:
    """E6: the budget of the context was passed as that of each completion."""
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        path = str(tmp_path / "groups.jsonl")
        env = make_env(TerminalTestEnv, tokenizer, server.url, group_size=1, data_path_to_save_groups=path)
        await process(env, 1)
        prompts = [len(body["prompt"]["prompt_token_ids"]) for body in server.bodies]
        assert [body["max_tokens"] for body in server.bodies] == [12_000 - 1 - size for size in prompts]
        server.bodies.clear()
        env = make_env(TerminalTestEnv, tokenizer, server.url, group_size=1, max_tokens_per_turn=500)
        env.config.data_path_to_save_groups = path
        async with env.config.make_pool() as env.pool:

            async def work() -> None:
                await env.collect_trajectories(FileTask("greeting", "greeting.txt", ""))

            await env.scheduler.run(work, 1)
    assert {body["max_tokens"] for body in server.bodies} == {500}


async def test_calls_of_a_turn_run_side_by_side_and_a_broken_one_is_told(tokenizer: Path, tmp_path: Path) -> None:
    """E19: calls one after another; a call that could not be read looked like a natural end."""

    def policy(prompt: str) -> str:
        answered = prompt.count("<|im_start|>tool")
        if not answered:
            waits = call("write_file", path="a", content="x") + call(
                "terminal", command="until [ -e a ]; do sleep .1; done"
            )
            return waits.replace("write_file", "terminal").replace(
                '"path": "a", "content": "x"', '"command": "touch a"'
            )
        return "<tool_call>\n{broken" if answered < 3 else "done"

    episodes: list[Episode] = []

    class Watches(TerminalTestEnv):
        def sandbox_spec(self, item: FileTask) -> SandboxSpec:
            return SandboxSpec(loop={"max_turns": 4})

        async def compute_reward(self, item: FileTask, result: Episode, ctx: ToolContext) -> float:  # type: ignore[override]
            episodes.append(result)
            return 1.0

    with serving(PolicyServer(load(tokenizer), policy)) as server:
        path = str(tmp_path / "groups.jsonl")
        await process(make_env(Watches, tokenizer, server.url, group_size=1, data_path_to_save_groups=path), 1)
    (episode,) = episodes
    assert [one.error_kind for one in episode.tool_calls] == [None, None, "malformed_call"]
    assert episode.finish == "answered"


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_can_be_imported_and_made(name: str, tokenizer: Path) -> None:
    """E17: an environment imported a module that was not there."""
    kind: type[Any] = load_environment(name)
    env = make_env(kind, tokenizer, "http://127.0.0.1:9/v1")
    assert env.config.wandb_name == name


async def test_endless_terminals_evaluates_and_fills_groups(tokenizer: Path, tmp_path: Path) -> None:
    """E18: its evaluation failed, and it gave a group where an item was expected."""
    with serving(PolicyServer(load(tokenizer), lambda _: "I do nothing.")) as server:
        kind = load_environment("endless_terminals")
        path = str(tmp_path / "groups.jsonl")
        settings: dict[str, Any] = {
            "use_dataset": False,
            "network": False,
            "eval_split_ratio": 0.4,
            "data_dir_to_save_evals": str(tmp_path / "evals"),
        }
        (group,) = await process(make_env(kind, tokenizer, server.url, data_path_to_save_groups=path, **settings), 1)
        await make_env(kind, tokenizer, server.url, **settings)._run_evaluate()
    assert group["scores"] == [0.0, 0.0]
    (line,) = (tmp_path / "evals" / "samples.jsonl").read_text().splitlines()
    assert json.loads(line)["solved"] is False


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gsm8k_agent", {"dataset_name": "shipped"}),
        ("hermes_swe", {"dataset_name": "shipped"}),
        ("swe_smith_oracle", {"max_items": 1}),
    ],
)
async def test_the_others_fill_groups(name: str, settings: dict[str, Any], tokenizer: Path, tmp_path: Path) -> None:
    with serving(
        PolicyServer(load(tokenizer), lambda p: "no" if "<|im_start|>tool" in p else call("terminal", command="ls"))
    ) as server:
        path = str(tmp_path / "groups.jsonl")
        env = make_env(load_environment(name), tokenizer, server.url, data_path_to_save_groups=path, **settings)
        env.config.max_token_length = 20_000
        (group,) = await process(env, 1)
    assert group["scores"] == [0.0, 0.0]
