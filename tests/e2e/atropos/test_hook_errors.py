"""What hooks raise that would end a task or the process without a word: it is told, and no rollout is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hermes_agent import Episode, Verdict
from hermes_atropos import EnvironmentStopped, EvaluatedItem, ToolContext
from hermes_atropos.envs.terminal_test import TRAIN, FileTask, TerminalTestEnv
from hermes_exec import ErrorCause, ExecError
from tests.e2e.atropos.inference_server import PolicyServer, load, make_env, process, read_groups, serving, solve
from tests.e2e.atropos.test_commands_end import program
from tests.e2e.atropos.trainer import flags, run

pytestmark = pytest.mark.anyio

NOWHERE = "http://127.0.0.1:9/v1"
ENDS_PROCESS_IN_A_TASK = """
    async def compute_reward(self, item, result, ctx):
        async def end():
            sys.exit(0)
        await asyncio.create_task(end())
"""
ENDS_PROCESS_IN_AN_EVALUATION = """
    async def compute_reward(self, item, result, ctx):
        import unittest
        unittest.main(argv=["x", "-q"], module="math")
"""
DROPS_ONE = """
    async def postprocess_histories(self, group):
        self.groups = getattr(self, "groups", 0) + 1
        if self.groups == 2:
            for name in ("tokens", "masks", "scores"):
                group[name] = group[name][:1]
        return group
"""


async def await_what_was_cancelled() -> None:
    other = asyncio.create_task(asyncio.sleep(60))
    other.cancel()
    await other


class CancelledOnce(TerminalTestEnv):
    """The second reward awaits what was cancelled."""

    count = 0
    done: list[EvaluatedItem]

    async def compute_reward(self, item: FileTask, result: Episode, ctx: ToolContext) -> Verdict:
        self.count += 1
        if self.count == 2:
            await await_what_was_cancelled()
        return await super().compute_reward(item, result, ctx)

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        self.done = await self.evaluate_items(TRAIN, key=lambda item: item.prompt)


async def test_reward_that_awaits_what_was_cancelled_loses_no_item(tokenizer: Path) -> None:
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        env = make_env(CancelledOnce, tokenizer, server.url, max_rerolls=0, max_eval_workers=1)
        await env._run_evaluate()
    assert [one.solved for one in env.done] == [True, None, *[True] * (len(TRAIN) - 2)]
    assert env.done[1].error == (
        "RuntimeError: CancelledOnce.compute_reward raised CancelledError: something that it awaited was cancelled"
    )


async def test_rollout_of_a_group_is_rolled_again_when_its_reward_awaits_what_was_cancelled(
    tokenizer: Path, tmp_path: Path
) -> None:
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        path = str(tmp_path / "groups.jsonl")
        groups = await process(make_env(CancelledOnce, tokenizer, server.url, data_path_to_save_groups=path), 2)
    assert [group["scores"] for group in groups] == [[1.0, 1.0]] * 2


@pytest.mark.parametrize("hook", ["setup_trajectory_workspace", "compute_reward", "get_next_item"])
async def test_hook_that_always_awaits_what_was_cancelled_is_named(hook: str, tokenizer: Path, tmp_path: Path) -> None:
    async def wrong(*_: object, **__: object) -> None:
        await await_what_was_cancelled()

    kind = type("Wrong", (TerminalTestEnv,), {hook: wrong})
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        path = str(tmp_path / "groups.jsonl")
        env = make_env(kind, tokenizer, server.url, max_rerolls=0, data_path_to_save_groups=path)
        with pytest.raises((EnvironmentStopped, RuntimeError), match=rf"Wrong\.{hook} raised CancelledError"):
            await process(env, 1)


@pytest.mark.parametrize(
    ("hook", "raised"),
    [
        ("setup", SystemExit(0)),
        ("get_next_item", SystemExit(0)),
        ("format_prompt", SystemExit(0)),
        ("sandbox_spec", SystemExit(0)),
        ("setup_trajectory_workspace", SystemExit(0)),
        ("compute_reward", SystemExit(0)),
        ("compute_reward", KeyboardInterrupt()),
        ("postprocess_histories", SystemExit(0)),
    ],
)
async def test_hook_that_would_end_the_process_is_a_mistake(
    hook: str, raised: BaseException, tokenizer: Path, tmp_path: Path
) -> None:
    def now(*_: object, **__: object) -> None:
        raise raised

    async def later(*_: object, **__: object) -> None:
        raise raised

    kind = type("Wrong", (TerminalTestEnv,), {hook: now if hook in ("format_prompt", "sandbox_spec") else later})
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        env = make_env(kind, tokenizer, server.url, data_path_to_save_groups=str(tmp_path / "groups.jsonl"))
        with pytest.raises(ExecError, match=rf"Wrong\.{hook}: it raised {type(raised).__name__}\(") as stopped:
            await process(env, 1)
    assert stopped.value.cause is ErrorCause.CONFIG
    assert len(server.bodies) <= 2 * 3


@pytest.mark.parametrize(
    ("command", "body", "told"),
    [
        ("process", ENDS_PROCESS_IN_A_TASK, "the code of CountedEnv raised SystemExit(0), which would end the process"),
        ("evaluate", ENDS_PROCESS_IN_AN_EVALUATION, "CountedEnv.compute_reward: it raised SystemExit("),
    ],
)
def test_environment_whose_hook_ends_the_process_fails(
    command: str, body: str, told: str, tokenizer: Path, tmp_path: Path
) -> None:
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        code, said = run(command, *flags(tokenizer, server.url), name=program(tmp_path, body))
    assert code == 2, said
    assert told in said


def test_process_that_wrote_fewer_groups_fails_with_the_cause(tokenizer: Path, tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    more = ("--env.total_steps", "2", "--env.data_path_to_save_groups", str(path))
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        code, said = run("process", *flags(tokenizer, server.url, *more), name=program(tmp_path, DROPS_ONE))
    assert code == 3, said
    assert "1 of 2 groups were written; the last dropped groups:" in said
    assert "it has 1 sequences instead of 2" in said
    assert len(read_groups(path)) == 1


@pytest.mark.parametrize("given", [None, 3, [], [None], "text"])
async def test_what_is_no_group_is_a_mistake(given: object, tokenizer: Path, tmp_path: Path) -> None:
    class Wrong(TerminalTestEnv):
        async def postprocess_histories(self, trajectories: object) -> object:
            return given

    with serving(PolicyServer(load(tokenizer), solve)) as server:
        env = make_env(Wrong, tokenizer, server.url, data_path_to_save_groups=str(tmp_path / "groups.jsonl"))
        with pytest.raises(
            ExecError, match=r"Wrong\.postprocess_histories: it must return a group or a list"
        ) as stopped:
            await process(env, 1)
    assert stopped.value.cause is ErrorCause.CONFIG


async def test_groups_of_equal_scores_that_are_dropped_are_missing(tokenizer: Path, tmp_path: Path) -> None:
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        path = str(tmp_path / "groups.jsonl")
        env = make_env(
            TerminalTestEnv, tokenizer, server.url, data_path_to_save_groups=path, ensure_scores_are_not_same=True
        )
        with pytest.raises(EnvironmentStopped, match=r"0 of 1 groups were written.*\n.*its scores are equal"):
            await process(env, 1)
