"""Evaluations on real slots: written as they go, gone on with, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_agent import Episode, Verdict
from hermes_atropos import EnvironmentStopped, EvaluatedItem, ExecTool, ToolContext
from hermes_atropos.envs.terminal_test import TRAIN, FileTask, TerminalTestEnv
from hermes_exec import ConfigError, ErrorCause
from tests.e2e.atropos.inference_server import PolicyServer, load, make_env, serving, solve

pytestmark = pytest.mark.anyio


async def test_an_evaluation_is_written_as_it_goes_and_goes_on_where_it_ended(tokenizer: Path, tmp_path: Path) -> None:
    items = [FileTask(f"greeting {number}", "greeting.txt", "Hello from the slot") for number in range(4)]
    broken = {"greeting 2"}

    class Evaluates(TerminalTestEnv):
        async def compute_reward(self, item: FileTask, result: Episode, ctx: ToolContext) -> Verdict:
            if item.prompt in broken:
                raise RuntimeError("the verifier broke")
            return await super().compute_reward(item, result, ctx)

        async def evaluate(self, *args: Any, **kwargs: Any) -> None:
            self.done = await self.evaluate_items(items, key=lambda item: item.prompt, category=lambda _: "files")

    async def evaluate(server: PolicyServer) -> list[EvaluatedItem]:
        env = make_env(
            Evaluates, tokenizer, server.url, data_dir_to_save_evals=str(tmp_path), max_rerolls=1, max_eval_workers=2
        )
        await env._run_evaluate()
        done: list[EvaluatedItem] = env.done
        return done

    with serving(PolicyServer(load(tokenizer), solve)) as server:
        first = await evaluate(server)
        assert {one.key: one.solved for one in first} == {f"greeting {n}": None if n == 2 else True for n in range(4)}
        assert json.loads((tmp_path / "metrics.json").read_text())["results"]["all"]["eval/pass_rate_files"] == 1.0
        asked = len(server.bodies)
        with (tmp_path / "samples.jsonl").open("ab") as file:
            file.write('{"key": "greeting 3", "cut in é'.encode()[:-1])
        broken.clear()
        second = await evaluate(server)
    assert {one.key: one.solved for one in second} == {f"greeting {n}": True for n in range(4)}
    assert len(server.bodies) - asked == 3
    lines = (tmp_path / "samples.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["key"] for line in lines) == [item.prompt for item in items]


async def test_an_evaluation_waits_for_no_slot(tokenizer: Path) -> None:
    """More workers than slots would wait for these until they give up."""

    class Evaluates(TerminalTestEnv):
        async def evaluate(self, *args: Any, **kwargs: Any) -> None:
            items = [FileTask(f"greeting {number}", "greeting.txt", "Hello from the slot") for number in range(6)]
            self.done = await self.evaluate_items(items, key=lambda item: item.prompt)

        async def setup_trajectory_workspace(self, item: FileTask, *, trajectory_id: str, exec_tool: ExecTool) -> None:
            await anyio.sleep(0.5)
            waiting.append(self.pool.stats().waiting)

    waiting: list[int] = []
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        env = make_env(Evaluates, tokenizer, server.url, slots_per_sandbox=1, max_sandboxes=1, max_rerolls=0)
        await env._run_evaluate()
    assert [one.solved for one in env.done] == [True] * 6
    assert set(waiting) == {0}


async def test_two_evaluations_in_one_directory(tokenizer: Path, tmp_path: Path) -> None:
    class Second(TerminalTestEnv):
        async def evaluate(self, *args: Any, **kwargs: Any) -> None:
            await self.evaluate_items(TRAIN[:1], key=lambda item: item.path)

    class First(Second):
        async def compute_reward(self, item: FileTask, result: Episode, ctx: ToolContext) -> Verdict:
            with pytest.raises(ConfigError, match="another evaluation writes to"):
                await make_env(Second, tokenizer, server.url, data_dir_to_save_evals=str(tmp_path))._run_evaluate()
            return await super().compute_reward(item, result, ctx)

    with serving(PolicyServer(load(tokenizer), solve)) as server:
        await make_env(First, tokenizer, server.url, data_dir_to_save_evals=str(tmp_path))._run_evaluate()
    (line,) = (tmp_path / "samples.jsonl").read_text().splitlines()
    assert json.loads(line)["solved"] is True


async def test_item_of_an_evaluation_without_an_error_tells_how_it_ended(tokenizer: Path) -> None:
    class Evaluates(TerminalTestEnv):
        async def evaluate(self, *args: Any, **kwargs: Any) -> None:
            self.done = await self.evaluate_items(TRAIN[:1], key=lambda item: item.path)

    policy = lambda prompt: "" if "tool_response" in prompt else "<tool_call>{</tool_call>"  # noqa: E731
    with serving(PolicyServer(load(tokenizer), policy, "openai")) as server:
        env = make_env(Evaluates, tokenizer, server.url, server_type="openai", max_rerolls=0)
        with pytest.raises(EnvironmentStopped, match="the last error: empty"):
            await env._run_evaluate()


class Raises(TerminalTestEnv):
    """The reward of each second rollout raises."""

    count = 0
    error: Exception = ValueError("no number")
    done: list[EvaluatedItem]

    async def compute_reward(self, item: FileTask, result: Episode, ctx: ToolContext) -> Verdict:
        self.count += 1
        if self.count % 2 == 0:
            raise self.error
        return await super().compute_reward(item, result, ctx)

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        self.done = await self.evaluate_items(TRAIN[:2], key=lambda item: item.path)


async def test_evaluation_of_several_samples_continues_with_those_that_are_missing(
    tokenizer: Path, tmp_path: Path
) -> None:
    results = []
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        for samples in (1, 3):
            env = make_env(
                Raises, tokenizer, server.url, max_eval_workers=1, on_reward_error="zero", eval_samples=samples,
                data_dir_to_save_evals=str(tmp_path),
            )  # fmt: skip
            await env._run_evaluate()
            results.append({(one.key, one.sample): one.solved for one in env.done})
    one, two = [item.path for item in TRAIN[:2]]
    assert results[0] == {(one, 0): True, (two, 0): False}
    assert results[1] == {(key, number): key == one for key in (one, two) for number in range(3)}
    metrics = json.loads((tmp_path / "metrics.json").read_text())["results"]["all"]
    assert {name: metrics[f"eval/{name}"] for name in ("items", "samples", "pass_rate", "solved_once")} == {
        "items": 2, "samples": 6, "pass_rate": 0.5, "solved_once": 0.5,
    }  # fmt: skip


async def test_reward_that_raises_is_rerolled_or_zero_or_ends_the_run(tokenizer: Path) -> None:
    outcomes = {}
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        for policy in ("reroll", "zero"):
            env = make_env(Raises, tokenizer, server.url, max_eval_workers=1, on_reward_error=policy)
            await env._run_evaluate()
            outcomes[policy] = [(one.reward, one.rerolls, one.check_output) for one in env.done]
        env = make_env(Raises, tokenizer, server.url, max_eval_workers=1, on_reward_error="stop")
        with pytest.raises(
            EnvironmentStopped, match=r"ValueError: no number \(--env.on_reward_error stop\)"
        ) as stopped:
            await env._run_evaluate()
    assert stopped.value.cause is ErrorCause.CONFIG
    assert [each[:2] for each in outcomes["reroll"]] == [(1.0, {}), (1.0, {"hook": 1})]
    assert [each[:2] for each in outcomes["zero"]] == [(1.0, {}), (0.0, {})]
    assert outcomes["zero"][1][2] == "the reward raised ValueError: no number"


async def test_outage_during_a_reward_is_never_zero(tokenizer: Path) -> None:
    class Lost(Raises):
        error = ConnectionResetError(104, "reset")

    with serving(PolicyServer(load(tokenizer), solve)) as server:
        env = make_env(Lost, tokenizer, server.url, max_eval_workers=1, on_reward_error="zero")
        await env._run_evaluate()
    assert [(one.reward, one.rerolls) for one in env.done] == [(1.0, {}), (1.0, {"infra": 1})]
