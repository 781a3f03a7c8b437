"""How the commands of an environment end: what is said, and with which exit code."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from tests.e2e.atropos.inference_server import PolicyServer, load, read_groups, serving, solve
from tests.e2e.atropos.trainer import ROOT, environment, flags, refusing, run, run_api

NOWHERE = "http://127.0.0.1:9/v1"
ENVIRONMENT = """
import asyncio, sys
sys.path[:0] = {path!r}
from hermes_atropos import SandboxAgentEnv, SandboxEnvConfig, SandboxSpec

class Config(SandboxEnvConfig):
    count: int = 3
    broken: bool = False
    keys: int = 100

class CountedEnv(SandboxAgentEnv[int]):
    name = "counted"
    env_config_cls = Config
    items = 0

    async def get_next_item(self):
        self.items += 1
        return self.items if self.items <= self.config.count else None

    def format_prompt(self, item):
        if item == 2 and self.config.broken:
            raise ValueError("a bad row")
        return "greeting %d" % item

    async def compute_reward(self, item, result, ctx):
        if self.config.broken:
            raise RuntimeError("the verifier broke")
        return float(await ctx.read_text("greeting.txt") is not None)

    async def evaluate(self):
        items = range(1, self.config.count + 1)
        await self.evaluate_items(items, key=lambda item: str(item % self.config.keys))
{body}
CountedEnv.cli()
"""


@pytest.fixture
def counted(tmp_path: Path) -> str:
    """An environment of three items, as a program."""
    return program(tmp_path)


def program(directory: Path, body: str = "") -> str:
    path = directory / "counted.py"
    parts = [str(ROOT), str(ROOT / "integrations" / "atropos")]
    path.write_text(textwrap.dedent(ENVIRONMENT).format(path=parts, body=body))
    return str(path)


def groups(directory: Path) -> tuple[str, str]:
    return "--env.data_path_to_save_groups", str(directory / "groups.jsonl")


def test_process_tells_that_there_are_no_more_items(counted: str, tokenizer: Path, tmp_path: Path) -> None:
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        given = flags(tokenizer, server.url, *groups(tmp_path / "new"), "--env.total_steps", "5")
        code, said = run("process", *given, name=counted)
        none, told = run("process", *given, "--env.count", "0", name=counted)
    assert code == 0, said
    assert "3 of 5 groups were written: no more items" in said
    assert len(read_groups(tmp_path / "new" / "groups.jsonl")) == 3
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "groups.jsonl").stat().st_mode & 0o777 == 0o600
    assert none == 2, told
    assert "counted has no items" in told


@pytest.mark.whole
def test_serve_ends_with_its_items(counted: str, tokenizer: Path) -> None:
    with run_api() as api, serving(PolicyServer(load(tokenizer), solve)) as server:
        api.register(batch_size=6, num_steps=10)
        more = ("--env.rollout_server_url", api.url, "--env.ensure_scores_are_not_same", "false")
        given = flags(tokenizer, server.url, *more)
        with environment("serve", *given, name=counted) as env:
            (first, second, third) = api.batch(60)
            said, _ = env.communicate(timeout=60)
        none, told = run("serve", *given, "--env.count", "0", name=counted)
    assert [group["scores"] for group in (first, second, third)] == [[1.0, 1.0]] * 3
    assert env.returncode == 0, said
    assert "no more items" in said
    assert none == 2, told
    assert "counted has no items" in told


BROKEN_POSTPROCESS = """
    async def postprocess_histories(self, group):
        raise KeyError("advantages")
"""


def test_serve_whose_groups_are_all_lost_fails(tokenizer: Path, tmp_path: Path) -> None:
    """atroposlib only logs what `postprocess_histories` raises."""
    with run_api() as api, serving(PolicyServer(load(tokenizer), solve)) as server:
        api.register(batch_size=6, num_steps=10)
        more = ("--env.rollout_server_url", api.url, "--env.ensure_scores_are_not_same", "false")
        code, said = run("serve", *flags(tokenizer, server.url, *more), name=program(tmp_path, BROKEN_POSTPROCESS))
    assert code == 3, said
    assert "no group was sent; the last dropped groups:" in said
    assert "CountedEnv.postprocess_histories: KeyError: 'advantages'" in said


@pytest.mark.parametrize("status", [422, 500])
def test_serve_whose_groups_the_server_of_atropos_refuses_fails(status: int, counted: str, tokenizer: Path) -> None:
    with run_api() as api, serving(PolicyServer(load(tokenizer), solve)) as server, refusing(api, status) as url:
        api.register(batch_size=6, num_steps=10)
        more = ("--env.rollout_server_url", url, "--env.ensure_scores_are_not_same", "false")
        code, said = run("serve", *flags(tokenizer, server.url, *more), name=counted)
        status_of_api = api.ask("/status")
    assert code == 3, said
    assert "the atropos server refused it: HTTP " + str(status) in said
    assert status_of_api["queue_size"] == 0


def test_an_evaluation_goes_on_with_the_same_settings_alone(counted: str, tokenizer: Path, tmp_path: Path) -> None:
    more = ("--env.data_dir_to_save_evals", str(tmp_path / "evals"), "--env.use_wandb", "false")
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        given = flags(tokenizer, server.url, *more)
        assert run("evaluate", *given, name=counted)[0] == 0
        asked = len(server.bodies)
        fewer, fewer_said = run("evaluate", *given, "--env.max_eval_workers", "2", name=counted)
        assert len(server.bodies) == asked
        other, other_said = run("evaluate", *given, "--openai.model_name", "other", name=counted)
        longer, longer_said = run("evaluate", *given, "--env.max_agent_turns", "3", name=counted)
    assert fewer == 0, fewer_said
    assert "3 of 3 results are reused from" in fewer_said
    assert (other, longer) == (2, 2), other_said + longer_said
    assert "another openai.model_name: use another directory" in other_said
    assert "another env.max_agent_turns: use another directory" in longer_said
    metrics = json.loads((tmp_path / "evals" / "metrics.json").read_text())["results"]["all"]
    assert (metrics["eval/items"], metrics["eval/pass_rate"]) == (3, 1.0)
    assert (tmp_path / "evals").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "evals").iterdir()} == {0o600}


@pytest.mark.whole
def test_an_evaluation_of_which_nothing_can_be_said_has_failed(counted: str, tokenizer: Path, tmp_path: Path) -> None:
    """One bad row does not keep the others from being worked on."""
    evals = tmp_path / "evals"
    more = ("--env.data_dir_to_save_evals", str(evals), "--env.broken", "true", "--env.max_rerolls", "1")
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        code, said = run("evaluate", *flags(tokenizer, server.url, *more), name=counted)
        twice, told = run("evaluate", *flags(tokenizer, server.url, "--env.keys", "2"), name=counted)
    assert code == 3, said
    assert "none of the 3 rollouts has a result" in said
    errors = {one["key"]: one["error"] for one in read_groups(evals / "samples.jsonl")}
    assert errors == dict.fromkeys("13", "RuntimeError: the verifier broke") | {"2": "ValueError: a bad row"}
    assert said.count("Traceback") == 2
    assert twice == 2, told
    assert "3 items have only 2 different keys" in told


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--env.group_size", "0"], "env.group_size: Input should be greater than or equal to 1"),
        (["--env.max_eval_workers", "0"], "env.max_eval_workers: Input should be greater than or equal to 1"),
        (["--env.max_token_length", "-1"], "env.max_token_length: Input should be greater than 0"),
        (["--env.sampling", '{"n": 3}'], "env.sampling: n cannot be set in sampling"),
    ],
)
def test_settings_that_cannot_be(more: list[str], told: str, counted: str, tokenizer: Path) -> None:
    code, said = run("process", *flags(tokenizer, NOWHERE, *more), name=counted)
    assert code == 2, said
    assert told in said
    assert "Traceback" not in said


def test_a_section_with_a_wrong_name(counted: str, tokenizer: Path, tmp_path: Path) -> None:
    file = tmp_path / "rl.yaml"
    for text, told in (("envs: {}", "section 'envs'; did you mean 'env'?"), ("tinker: {}", "neither a section env")):
        file.write_text(text)
        code, said = run("process", *flags(tokenizer, NOWHERE, "--config", str(file)), name=counted)
        assert code == 2, said
        assert told in said


@pytest.mark.whole
def test_hooks_that_are_not_there(tokenizer: Path, tmp_path: Path) -> None:
    without = program(tmp_path, "\ndel CountedEnv.compute_reward, CountedEnv.format_prompt\n")
    code, said = run("process", *flags(tokenizer, NOWHERE), name=without)
    assert code == 2, said
    assert "CountedEnv has no format_prompt and no compute_reward" in said


def test_a_prompt_that_is_too_long_is_not_tried_again(counted: str, tokenizer: Path, tmp_path: Path) -> None:
    more = (*groups(tmp_path), "--env.max_failed_groups", "2", "--env.max_token_length", "100")
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        code, said = run("process", *flags(tokenizer, server.url), *more, name=counted)
    assert code == 3, said
    assert "the context is 99 tokens (limited by --env.max_token_length)" in said
    assert "reroll" not in said
    assert not server.bodies
