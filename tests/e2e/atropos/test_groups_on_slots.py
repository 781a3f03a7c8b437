"""Whole groups on real slots: exact ids in every wire shape, rolled again after faults, dropped with their cause."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_agent import Episode, Verdict
from hermes_atropos import EnvironmentStopped, ExecTool, SandboxSpec, ToolContext, loop_watch
from hermes_atropos.envs.terminal_test import TRAIN, FileTask, TerminalTestEnv
from hermes_exec.tools import tool
from tests.e2e.atropos.inference_server import (
    PolicyServer,
    call,
    load,
    make_env,
    make_tokenizer,
    process,
    sampled,
    sequences,
    serving,
    solve,
)
from tests.support.waiting import until
from tests.unit.agent.tokens.families import DROPS_THINKING, PLAIN
from tests.unit.agent.tokens.server import SHAPES, Answer, Logged

pytestmark = pytest.mark.anyio
TYPES = {"vllm": "vllm", "sglang": "sglang", "tinker": "sglang"}
TRIMS = PLAIN.replace("message.content }}", "message.content | trim }}")


@pytest.mark.parametrize("shape", TYPES)
@pytest.mark.parametrize("template", [PLAIN, DROPS_THINKING, TRIMS], ids=["plain", "drops_thinking", "trims"])
async def test_one_sequence_an_episode_as_it_was_sampled(shape: str, template: str, tmp_path: Path) -> None:
    """Also E1 (only the last node was kept, without log-probabilities) and E3 (truncation rewrote the history)."""
    made = make_tokenizer(tmp_path / "tokenizer", template)
    policy = lambda prompt: "<think>\nhm </think>\n " + solve(prompt)  # noqa: E731
    with serving(PolicyServer(load(made), policy, shape)) as server:
        inference = "tinker" if shape == "tinker" else "auto"
        env = make_env(
            TerminalTestEnv, made, server.url, server_type=TYPES[shape], inference_server=inference,
            data_path_to_save_groups=str(tmp_path / "groups.jsonl"),
        )  # fmt: skip
        groups = await process(env, 2)
    assert len(server.bodies) == 2 * 2 * 3
    assert [group["scores"] for group in groups] == [[1.0, 1.0]] * 2
    assert sequences(groups) == sampled(server.log, 3)
    end = load(made).eos_token_id
    for group in groups:
        assert group["generation_params"] == {"temperature": 1.0}
        assert (group["group_overrides"], group["overrides"], group["advantages"]) == ({}, None, None)
        for ids, mask, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
            assert all((m == -100) == (p == 1.0) for m, p in zip(mask, logprobs, strict=True))
            assert (end, end) not in itertools.pairwise(ids)
            assert mask[-1] != -100
        for conversation in group["messages"]:
            assert all("content" in message for message in conversation)


async def test_a_chat_server_gives_groups_that_are_marked_and_have_no_logprobs(tokenizer: Path, tmp_path: Path) -> None:
    with serving(PolicyServer(load(tokenizer), solve, "openai")) as server:
        env = make_env(
            TerminalTestEnv, tokenizer, server.url, server_type="openai",
            data_path_to_save_groups=str(tmp_path / "groups.jsonl"), include_messages=True, sampling='{"top_k": 5}',
        )  # fmt: skip
        (group,) = await process(env, 1)
    assert (group["scores"], group["inference_logprobs"], group["group_overrides"]) == ([1.0, 1.0], None, {"phase": 1})
    text = load(tokenizer).decode
    for ids, mask, conversation in zip(group["tokens"], group["masks"], group["messages"], strict=True):
        trained = text([i for i, m in zip(ids, mask, strict=True) if m != -100])
        assert trained.count("<|im_end|>") == 3
        assert all(m in (-100, i) for i, m in zip(ids, mask, strict=True))
        for message in conversation:
            if message["role"] == "assistant":
                assert message["content"] in trained
            else:
                assert message["content"] not in trained
    assert {body["top_k"] for body in server.bodies} == {5}
    assert all(body["tools"] for body in server.bodies)
    assert max(body["max_tokens"] for body in server.bodies) < 12_000


async def test_rollouts_that_fail_are_rolled_again(tokenizer: Path, tmp_path: Path) -> None:
    """E2: a verifier that crashed was a reward of 0."""
    count = itertools.count(1)

    class Crashes(TerminalTestEnv):
        async def compute_reward(self, item: FileTask, result: Episode, ctx: ToolContext) -> Verdict:
            if next(count) % 5 == 0:
                raise RuntimeError("the verifier broke")
            return await super().compute_reward(item, result, ctx)

    with serving(PolicyServer(load(tokenizer), solve)) as server:
        path = str(tmp_path / "groups.jsonl")
        env = make_env(Crashes, tokenizer, server.url, group_size=4, data_path_to_save_groups=path)
        groups = await process(env, 4)
        assert [len(group["tokens"]) for group in groups] == [4] * 4
        assert {score for group in groups for score in group["scores"]} == {1.0}
        rerolls = (next(count) - 1) - 16
        assert rerolls == 3
        assert len(server.bodies) == 3 * (16 + rerolls)


async def test_a_hook_that_holds_up_the_event_loop_is_named(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_watch, "STALL_S", 0.2)

    class Blocks(TerminalTestEnv):
        async def compute_reward(self, item: FileTask, result: Episode, ctx: ToolContext) -> Verdict:
            end = time.monotonic() + 30
            while "in compute_reward" not in caplog.text and time.monotonic() < end:
                time.sleep(0.05)  # noqa: ASYNC251 - as an author would
            return await super().compute_reward(item, result, ctx)

    with serving(PolicyServer(load(tokenizer), solve)) as server:
        env = make_env(Blocks, tokenizer, server.url, data_path_to_save_groups=str(tmp_path / "groups.jsonl"))
        await process(env, 1)
    assert caplog.text.count("in compute_reward\n    time.sleep(0.05)") == 1


async def test_an_id_that_the_tokenizer_does_not_have_is_not_sent(tokenizer: Path, tmp_path: Path) -> None:
    """Its text would be left out, and a trainer's model would fail on it."""

    def policy(prompt: str) -> Answer:
        asked, said = server.bodies[-1], Logged([], [7_000_000], [-0.5])
        shape = SHAPES["sglang"]
        return Answer(200, json.dumps(shape.writes(shape.reads(asked), said, "stop")).encode())

    with serving(PolicyServer(load(tokenizer), policy, "sglang")) as server:
        path = str(tmp_path / "groups.jsonl")
        env = make_env(TerminalTestEnv, tokenizer, server.url, server_type="sglang", data_path_to_save_groups=path)
        with pytest.raises(EnvironmentStopped, match=r"the highest id of the tokenizer is \d+, and one is 7000000"):
            await process(env, 1)


PAIRS = (
    call("write_file", path="f", content="new\n") + call("read_file", path="f"),
    call("terminal", command="echo new > g") + call("read_file", path="g"),
)


@pytest.mark.parametrize("command", ["process", "evaluate"])
async def test_calls_of_a_turn_run_in_their_order(command: str, tokenizer: Path, tmp_path: Path) -> None:
    """Each read follows a write of the same turn, in eight slots at once: none shows what was there before."""
    reads: list[str] = []

    class Ordered(TerminalTestEnv):
        def sandbox_spec(self, item: FileTask) -> SandboxSpec:
            return SandboxSpec(files={"f": "old\n", "g": "old\n"})

        async def compute_reward(self, item: FileTask, result: Episode, ctx: ToolContext) -> Verdict:
            reads.extend(one.content for one in result.tool_calls if one.name == "read_file")
            return Verdict(1.0, solved=True)

        async def evaluate(self, *args: Any, **kwargs: Any) -> None:
            items = [FileTask(str(number), "f", "new") for number in range(16)]
            await self.evaluate_items(items, key=lambda item: item.prompt)

    def policy(prompt: str) -> str:
        turn = prompt.count("<|im_start|>assistant") - 1
        return PAIRS[turn] if turn < len(PAIRS) else "done"

    with serving(PolicyServer(load(tokenizer), policy)) as server:
        path = str(tmp_path / "groups.jsonl")
        env = make_env(Ordered, tokenizer, server.url, group_size=8, max_eval_workers=8, data_path_to_save_groups=path)
        await (process(env, 2) if command == "process" else env._run_evaluate())
    assert len(reads) == 2 * 16
    assert [read for read in reads if "new" not in read or "old" in read] == []


async def test_groups_in_flight_have_their_own_toolsets(tokenizer: Path) -> None:
    """E4: two groups in flight used each other's tools."""
    drawn: dict[str, set[str]] = {}

    class Draws(TerminalTestEnv):
        async def compute_reward(self, item: FileTask, result: Episode, ctx: ToolContext) -> Verdict:
            names = ",".join(sorted(one["function"]["name"] for one in result.tools))
            drawn.setdefault(item.prompt, set()).add(names)
            return Verdict(1.0, solved=True)

    with serving(PolicyServer(load(tokenizer), lambda _: "done")) as server:
        env = make_env(Draws, tokenizer, server.url, distribution="mixed_tasks", toolset_seed=5)
        items = [FileTask(f"task {number}", "x", "y") for number in range(8)]

        async def work() -> None:
            async with anyio.create_task_group() as tasks:
                for item in items:
                    tasks.start_soon(env.collect_trajectories, item)

        async with env.config.make_pool() as env.pool:
            await env.scheduler.run(work, 8)
    assert {len(names) for names in drawn.values()} == {1}
    assert len({names for found in drawn.values() for names in found}) > 1
    expected = [env.config.toolsets(number) for number in range(8)]
    assert expected == [env.config.toolsets(number) for number in range(8)]


async def test_a_group_that_was_called_off_keeps_what_is_finished(tokenizer: Path) -> None:
    slow = threading.Event()
    first = itertools.count()

    def policy(prompt: str) -> str:
        # The second rollout of the first try waits until it is called off.
        if "<|im_start|>tool" not in prompt and next(first) == 1:
            slow.wait(30)
        return solve(prompt)

    with serving(PolicyServer(load(tokenizer), policy)) as server:
        env = make_env(TerminalTestEnv, tokenizer, server.url)
        item = TRAIN[0]
        told: list[Any] = []

        async def work() -> None:
            with anyio.move_on_after(60):
                async with anyio.create_task_group() as tasks:

                    async def called_off() -> None:
                        await env.collect_trajectories(item)

                    tasks.start_soon(called_off)
                    await until(lambda: env.scheduler.tally._rewards == [1.0])
                    tasks.cancel_scope.cancel()
            await until(lambda: env.pool.stats().slots_in_use == 0)
            slow.set()
            told.append(await env.collect_trajectories(item))

        async with env.config.make_pool() as env.pool:
            await env.scheduler.run(work, 8)
            stats = env.pool.stats()
    ((group, backlog),) = told
    assert (group["scores"], backlog) == ([1.0, 1.0], [])
    assert stats.acquired == stats.released == 3


async def test_hooks_of_older_environments(tokenizer: Path, tmp_path: Path) -> None:
    seen: list[Mapping[str, Any]] = []

    class Older(TerminalTestEnv):
        async def setup_trajectory_workspace(
            self, item: FileTask, *, trajectory_id: str, exec_tool: ExecTool
        ) -> dict[str, Any]:
            made = await exec_tool("terminal", {"command": "echo secret > given.txt; cat given.txt"})
            return {"id": trajectory_id, "said": made.output.strip()}

        def sandbox_spec(self, item: FileTask) -> SandboxSpec:
            return SandboxSpec(files={"more.txt": "more"})

        async def verify_and_score_trajectory(
            self,
            item: FileTask,
            result: Episode,
            *,
            trajectory_id: str,
            exec_tool: ExecTool,
            workspace_meta: Mapping[str, Any],
        ) -> tuple[float, dict[str, Any]]:
            read = await exec_tool("terminal", {"command": "cat given.txt more.txt; exit 3"})
            seen.append({**workspace_meta, "same": trajectory_id == workspace_meta["id"], "code": read.exit_code})
            return 0.25 if read.output.strip() == "secret\nmore" else 0.0, {"why": "a test"}

    with serving(PolicyServer(load(tokenizer), solve)) as server:
        path = str(tmp_path / "groups.jsonl")
        (group,) = await process(make_env(Older, tokenizer, server.url, data_path_to_save_groups=path), 1)
    assert group["scores"] == [0.25, 0.25]
    assert [(one["said"], one["same"], one["code"]) for one in seen] == [("secret", True, 3)] * 2
    assert len({one["id"] for one in seen}) == 2


async def test_tools_of_the_host_and_the_limits_of_an_item(tokenizer: Path, tmp_path: Path) -> None:
    @tool
    async def ask_oracle(question: str) -> str:
        """Asks the oracle.

        Args:
            question: What is to be asked.
        """
        return f"the oracle knows {question}"

    class WithOracle(TerminalTestEnv):
        def sandbox_spec(self, item: FileTask) -> SandboxSpec:
            return SandboxSpec(tools=[ask_oracle], toolsets=["terminal"], loop={"max_turns": 2})

        async def compute_reward(self, item: FileTask, result: Episode, ctx: ToolContext) -> float:  # type: ignore[override]
            (only,) = [one for one in result.tool_calls if one.name == "ask_oracle"][:1]
            return float("the oracle knows what" in only.content and result.finish == "max_turns")

    policy = lambda _: call("ask_oracle", question="what") + call("terminal", command="true")  # noqa: E731
    with serving(PolicyServer(load(tokenizer), policy)) as server:
        path = str(tmp_path / "groups.jsonl")
        (group,) = await process(make_env(WithOracle, tokenizer, server.url, data_path_to_save_groups=path), 1)
    assert group["scores"] == [1.0, 1.0]


async def test_a_last_turn_that_says_nothing_is_what_was_sampled(tokenizer: Path, tmp_path: Path) -> None:
    policy = lambda prompt: solve(prompt) if "<tool_response>" not in prompt else ""  # noqa: E731
    with serving(PolicyServer(load(tokenizer), policy)) as server:
        env = make_env(TerminalTestEnv, tokenizer, server.url, data_path_to_save_groups=str(tmp_path / "groups.jsonl"))
        (group,) = await process(env, 1)
    assert group["scores"] == [1.0, 1.0]
    assert sequences([group]) == sampled(server.log, 2)


async def test_halves_of_surrogate_pairs_are_replaced_in_what_is_written(tokenizer: Path, tmp_path: Path) -> None:
    odd = '<tool_call>\n{"name": "terminal\\ud83d", "arguments": {"command": "true"}}\n</tool_call>'

    class Odd(TerminalTestEnv):
        def format_prompt(self, item: FileTask) -> str:
            return f"\ud83d {item.prompt}"

    with serving(PolicyServer(load(tokenizer), lambda p: "done" if "<tool_response>" in p else odd)) as server:
        env = make_env(Odd, tokenizer, server.url, data_path_to_save_groups=str(tmp_path / "groups.jsonl"))
        (group,) = await process(env, 1)
    assert group["messages"][0][0]["content"].startswith("? ")
    assert group["messages"][0][1]["tool_calls"][0]["function"]["name"] == "terminal?"
    assert sequences([group]) == sampled(server.log, 2)


async def test_an_episode_beyond_its_deadline_is_not_solved(tokenizer: Path, tmp_path: Path) -> None:
    policy = lambda _: call("terminal", command="sleep 30")  # noqa: E731

    class Evaluates(TerminalTestEnv):
        async def evaluate(self, *args: Any, **kwargs: Any) -> None:
            self.done = await self.evaluate_items(TRAIN[:1], key=lambda item: item.path)

    with serving(PolicyServer(load(tokenizer), policy)) as server:
        env = make_env(Evaluates, tokenizer, server.url, deadline_s=1.0)
        await env._run_evaluate()
    ((one),) = env.done
    assert (one.finish, one.solved, one.reward) == ("deadline", False, 0.0)
