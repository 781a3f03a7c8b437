"""Rewards that are no finite numbers are never sent, and scalars of numpy are numbers."""

from __future__ import annotations

import itertools
import json
import urllib.error
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hermes_agent import Episode, Verdict
from hermes_atropos import EnvironmentStopped, ExecTool, ToolContext
from hermes_atropos.envs.terminal_test import FileTask, TerminalTestEnv
from hermes_atropos.groups import find_problem, to_json
from hermes_exec import ErrorCause
from tests.e2e.atropos.inference_server import PolicyServer, load, make_env, process, read_groups, serving, solve
from tests.e2e.atropos.test_commands_end import program
from tests.e2e.atropos.trainer import environment, flags, run, run_api

pytestmark = pytest.mark.anyio

GROUP = {
    "tokens": [[1, 2], [3]], "masks": [[-100, 2], [3]], "scores": [0.0, 1.0], "messages": None,
    "inference_logprobs": [[1.0, -1.0], [-2.0]], "generation_params": {"temperature": 1.0}, "group_overrides": {},
}  # fmt: skip
REWARDS = """
    async def compute_reward(self, item, result, ctx):
        import numpy
        if item == 3:
            return numpy.float64("nan")
        return numpy.float32(0.25) if self.toggle() else numpy.bool_(True)

    def toggle(self):
        self.count = getattr(self, "count", 0) + 1
        return self.count % 2

    async def postprocess_histories(self, group):
        import numpy
        group["scores"] = numpy.array(group["scores"], numpy.float32)
        group["advantages"] = [numpy.full(len(ids), numpy.float32(0.5)) for ids in group["tokens"]]
        return group
"""
POSTPROCESS = """
    async def postprocess_histories(self, group):
        group["advantages"] = [[float("inf")] * len(ids) for ids in group["tokens"]]
        return group
"""


def test_server_of_atropos_takes_nan_and_then_gives_no_batch() -> None:
    """Why such a group must not be sent: the groups of other environments in the batch are lost with it."""
    with run_api() as api:
        api.register(batch_size=4)
        api.ask("/register-env", {"max_token_length": 9, "desired_name": "n", "weight": 1.0, "group_size": 2})
        group = {**GROUP, "scores": [0.0, float("nan")]}
        assert find_problem(group, 2) == "scores[1] is nan, which is not a finite number"
        for sent in (GROUP, group):
            assert api.ask("/scored_data", {**sent, "env_id": 0})["status"] == "received"
        with pytest.raises(urllib.error.HTTPError, match="500"):
            api.ask("/batch")
        assert api.ask("/batch")["batch"] is None


def test_trainer_gets_plain_numbers_and_no_nan(tokenizer: Path, tmp_path: Path) -> None:
    with run_api() as api, serving(PolicyServer(load(tokenizer), solve)) as server:
        api.register(batch_size=4, num_steps=10)
        more = ("--env.rollout_server_url", api.url, "--env.max_num_workers", "1")
        name = program(tmp_path, REWARDS)
        with environment("serve", *flags(tokenizer, server.url, *more), name=name) as env:
            batch = api.batch(60)
            said, _ = env.communicate(timeout=60)
        assert api.ask("/batch")["batch"] is None
    assert [sorted(group["scores"]) for group in batch] == [[0.25, 1.0]] * 2
    assert batch[0]["advantages"] == [[0.5] * len(ids) for ids in batch[0]["tokens"]]
    assert env.returncode == 2, said
    assert "CountedEnv.compute_reward: a reward must be a finite number or a Verdict: np.float64(nan)" in said
    assert "Traceback" not in said
    assert len(server.bodies) <= 3 * 2 * 3


def test_number_of_postprocess_that_is_not_finite_ends_the_run(tokenizer: Path, tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        given = flags(tokenizer, server.url, "--env.data_path_to_save_groups", str(path))
        code, said = run("process", *given, name=program(tmp_path, POSTPROCESS))
    assert code == 2, said
    assert "CountedEnv.postprocess_histories: advantages[0][0] is inf, which is not a finite number" in said
    assert not path.exists()


@pytest.mark.whole
def test_evaluation_ends_with_the_first_reward_that_is_not_finite(tokenizer: Path, tmp_path: Path) -> None:
    more = ("--env.data_dir_to_save_evals", str(tmp_path), "--env.count", "12", "--env.max_eval_workers", "1")
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        code, said = run("evaluate", *flags(tokenizer, server.url, *more), name=program(tmp_path, REWARDS))
    assert code == 2, said
    assert "CountedEnv.compute_reward: a reward must be a finite number" in said
    lines = read_groups(tmp_path / "samples.jsonl")
    assert [line["reward"] for line in lines] == [0.25, 1.0, None]
    assert len(server.bodies) == 3 * 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (float("nan"), "a reward must be a finite number or a Verdict: nan is not a finite number"),
        (Verdict(float("-inf"), solved=False), "it returns a Verdict with a finite reward: -inf is not a finite"),
        (np.float32("inf"), "is not a finite number"),
        ("1.0", "'1.0' is not a number"),
        (None, "None is not a number"),
        (np.array([0.5, 1.0]), "is not a number"),
        (NameError("the author's"), "NameError: the author's"),
        (ImportError("no such"), "ImportError: no such"),
    ],
)
async def test_mistake_in_a_reward_ends_the_run_without_another_rollout(
    given: Any,  # noqa: ANN401
    told: str,
    tokenizer: Path,
    tmp_path: Path,
) -> None:
    """Also after groups that were filled: the episodes that nobody can score would be paid again and again."""
    count = itertools.count()

    class Wrong(TerminalTestEnv):
        async def compute_reward(self, item: FileTask, result: Episode, ctx: ToolContext) -> Verdict:
            if next(count) < 2:
                return await super().compute_reward(item, result, ctx)
            if isinstance(given, Exception):
                raise given
            return given  # type: ignore[no-any-return]

    with serving(PolicyServer(load(tokenizer), solve)) as server:
        path = tmp_path / "groups.jsonl"
        env = make_env(Wrong, tokenizer, server.url, data_path_to_save_groups=str(path))
        with pytest.raises(EnvironmentStopped) as stopped:
            await process(env, 5)
    assert "the code of the environment: Wrong.compute_reward: " in str(stopped.value)
    assert told in str(stopped.value)
    assert stopped.value.cause is ErrorCause.CONFIG
    assert "reroll" not in str(stopped.value)
    assert len(read_groups(path)) == 1
    assert len(server.bodies) <= 2 * 2 * 3


async def test_mistake_in_the_set_up_ends_the_run_at_once(tokenizer: Path, tmp_path: Path) -> None:
    class Wrong(TerminalTestEnv):
        async def setup_trajectory_workspace(self, item: FileTask, *, trajectory_id: str, exec_tool: ExecTool) -> None:
            raise NameError("the author's")

    env = make_env(Wrong, tokenizer, "http://127.0.0.1:9/v1", data_path_to_save_groups=str(tmp_path / "groups.jsonl"))
    with pytest.raises(EnvironmentStopped, match=r"Wrong\.setup_trajectory_workspace: NameError: the author's"):
        await process(env, 1)


@pytest.mark.parametrize("given", [0.5, (0.5,), (0.5, {}, 1), (float("nan"), {})])
async def test_reward_of_an_older_environment_is_checked(given: Any, tokenizer: Path, tmp_path: Path) -> None:  # noqa: ANN401
    class Older(TerminalTestEnv):
        async def verify_and_score_trajectory(self, *_: Any, **__: Any) -> Any:  # noqa: ANN401
            return given

    with serving(PolicyServer(load(tokenizer), solve)) as server:
        env = make_env(Older, tokenizer, server.url, data_path_to_save_groups=str(tmp_path / "groups.jsonl"))
        with pytest.raises(
            EnvironmentStopped, match=r"Older\.verify_and_score_trajectory: (it must return|a reward must)"
        ):
            await process(env, 1)


@pytest.mark.parametrize("reward", [np.float32(0.5), np.array(0.5), 0.5])
async def test_reward_of_numpy_is_a_number(reward: Any, tokenizer: Path, tmp_path: Path) -> None:  # noqa: ANN401
    class WithNumpy(TerminalTestEnv):
        async def compute_reward(self, item: FileTask, result: Episode, ctx: ToolContext) -> Verdict:
            return reward  # type: ignore[no-any-return]

    with serving(PolicyServer(load(tokenizer), solve)) as server:
        path = str(tmp_path / "groups.jsonl")
        (group,) = await process(make_env(WithNumpy, tokenizer, server.url, data_path_to_save_groups=path), 1)
    assert group["scores"] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"scores": [1.0, float("nan")]}, "scores[1] is nan"),
        ({"scores": np.array([1.0, np.inf])}, "scores[1] is inf"),
        ({"scores": ["1.0", 0.0]}, "its scores are ['1.0', 0.0], not numbers"),
        ({"advantages": [[0.0, float("nan")], [0.0]]}, "advantages[0][1] is nan"),
        ({"advantages": [0.5, 0.5]}, "advantages[0] is not a list of numbers"),
        ({"advantages": [[0.5, 0.5]]}, "its advantages are of 1 sequences instead of 2"),
        ({"ref_logprobs": [[float("-inf"), 0.0], [0.0]]}, "ref_logprobs[0][0] is -inf"),
        ({"inference_logprobs": [[1.0, None], [-2.0]]}, "inference_logprobs[0] is not a list of numbers"),
        ({"tokens": [[1, 2.5], [3]]}, "tokens[0] is not a list of whole numbers"),
        ({"generation_params": {"temperature": np.float32("nan")}}, "generation_params.temperature is nan"),
        ({"group_overrides": {"weights": [1, {"a": float("inf")}]}}, "group_overrides.weights[1].a is inf"),
        ({"overrides": [{"seen": object}, {}]}, "overrides[0].seen is <class 'object'>, which is not a JSON type"),
        ({"distill_logprobs": [[[0.0, float("nan")]]]}, "distill_logprobs[0][0][1] is nan"),
        ({"messages": [[{"role": "user", "content": "", "score": float("nan")}], []]}, "messages[0][0].score is nan"),
        ({"advantages": [], "ref_logprobs": []}, None),
        ({"scores": np.array([True, False]), "advantages": np.ones((2, 1))}, None),
        ({"tokens": [np.array([1, 2]), np.array([3])]}, None),
        ({"scores": [np.longdouble(0.5), np.int64(1)]}, None),
    ],
)
def test_place_of_what_is_no_finite_number_is_named(change: dict[str, Any], place: str | None) -> None:
    group = {name: to_json(value) for name, value in {**GROUP, **change}.items()}
    found = find_problem(group, 2)
    assert (found or "").startswith(place or "")
    assert (found is None) == (place is None)
    if found is None:
        json.dumps(group, allow_nan=False)
