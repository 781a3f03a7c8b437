"""Groups of programs in slots: what reaches the trainer is what the server sampled, also of several conversations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from hermes_agent import Episode
from hermes_atropos import EnvironmentStopped, SandboxAgentEnv, SandboxSpec, ToolContext
from hermes_atropos.groups import Group
from tests.e2e.atropos.inference_server import (
    PolicyServer,
    call,
    load,
    make_env,
    process,
    sampled,
    sequences,
    serving,
)
from tests.unit.agent.tokens.server import Logged

pytestmark = pytest.mark.anyio
HARNESS = Path(__file__).parents[1] / "agent" / "harness.py"

# A plan, a check of it, two parts at once, a summary, and the work that follows the summary. Nobody reads the title.
CONVERSATIONS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from harness import ask, work

def user(content): return {"role": "user", "content": content}

messages = [user(sys.argv[1])]
messages.append(ask(messages))
ask([user("title")])
check = ask([*messages, user("check")])["content"]
parts = ThreadPoolExecutor(2).map(work, ["part 1", "part 2"])
messages.append(user("; ".join(["results", check, *parts])))
messages.append(ask(messages))
print(work("go on: " + ask([*messages, user("summarise")])["content"]))
"""


class Policy:
    """Answers the requests of both harnesses. Every other rollout writes the wrong answer."""

    def __init__(self) -> None:
        self._works = itertools.count()

    def __call__(self, prompt: str) -> str:
        _, _, last = prompt.rpartition("<|im_start|>user\n")
        is_result = "<|im_start|>tool" in last
        if last.startswith("part"):
            return f"{last[:6]} is done" + " very well" * 40 if is_result else call("sh", command=f"echo {last[:6]}")
        if last.startswith(("go on", "Write")):
            if is_result:
                return "Done. café 中文"
            right = "wrong" if next(self._works) % 2 else "right"
            return call("sh", command=f"echo {right} > answer; echo é")
        return f"My answer to {last.split()[0][:7]} é"


class ProgramEnv(SandboxAgentEnv[int]):
    """A file that a program writes."""

    name = "program"
    task = "Write the answer."
    more: dict[str, Any] = {"program": ["python3", "harness.py", "{task}"]}  # noqa: RUF012

    async def setup(self) -> None:
        self.count = itertools.count()

    async def get_next_item(self) -> int:
        return next(self.count)

    def format_prompt(self, item: int) -> str:
        return self.task

    def sandbox_spec(self, item: int) -> SandboxSpec:
        return SandboxSpec(files={"harness.py": HARNESS}, keep=["answer"], **self.more)

    async def compute_reward(self, item: int, result: Episode, ctx: ToolContext) -> float:
        return float((await ctx.read_text("answer") or "").strip() == "right")


class ConversationsEnv(ProgramEnv):
    """The same with several conversations."""

    task = "plan"
    more = {"program": ["python3", "-c", CONVERSATIONS, "{task}"]}  # noqa: RUF012


def turns(groups: Sequence[dict[str, Any]]) -> list[Logged]:
    """Each run of trained ids with what is before it, sorted."""
    runs = []
    for ids, mask, logprobs in sequences(groups):
        for trained, places in groupby(range(len(ids)), lambda place: mask[place] != -100):  # noqa: B023 - used at once
            if trained:
                run = list(places)
                assert [mask[place] for place in run] == [ids[place] for place in run]
                runs.append(Logged([*ids[: run[0]]], [ids[n] for n in run], [logprobs[n] for n in run]))
    return sorted(runs)


def text_of(server: PolicyServer, said: Logged) -> str:
    return server.text(said.ids)


async def test_group_of_a_program_is_what_the_server_sampled(tokenizer: Path, tmp_path: Path) -> None:
    with serving(PolicyServer(load(tokenizer), Policy())) as server:
        env = make_env(ProgramEnv, tokenizer, server.url, data_path_to_save_groups=str(tmp_path / "groups.jsonl"))
        groups = await process(env, 2)
    assert len(server.log) == 2 * 2 * 2
    assert sequences(groups) == sampled(server.log, 2)
    for group in groups:
        assert (group["group_overrides"], group["advantages"]) == ({}, None)
        assert [[message["role"] for message in each] for each in group["messages"]] == [
            ["user", "assistant", "tool", "assistant"]
        ] * 2


@pytest.mark.parametrize(
    ("scope", "count", "trained"),
    [
        ("main", 1, ("plan", "results", "summari")),
        ("root", 2, ("plan", "check", "results", "summari")),
        ("all", 5, ("plan", "check", "results", "summari", "part 1", "part 2", "sh", "sh", "sh", "Done")),
    ],
)
async def test_setting_chooses_the_conversations(
    scope: str, count: int, trained: Sequence[str], tokenizer: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The thrown away title is never trained, every other turn exactly once."""
    with serving(PolicyServer(load(tokenizer), Policy())) as server:
        path = str(tmp_path / "groups.jsonl")
        env = make_env(ConversationsEnv, tokenizer, server.url, sequences=scope, data_path_to_save_groups=path)
        filled_groups: list[Group] = []
        env.scheduler.on_group = filled_groups.append
        (group,) = await process(env, 1)
    assert len(server.log) == 2 * 11
    wanted = [said for said in server.log if any(name in text_of(server, said) for name in trained)]
    assert turns([group]) == sorted(wanted)
    assert len(wanted) == 2 * len(trained)
    assert len(group["tokens"]) == len(group["messages"]) == 2 * count
    assert group["group_overrides"] == ({} if scope == "main" else {"group_size": 2 * count})
    first, *_, last = group["scores"]
    assert (group["scores"], {first, last}) == ([first] * count + [last] * count, {0.0, 1.0})
    for ids, mask, score, messages, advantages in zip(
        group["tokens"], group["masks"], group["scores"], group["messages"],
        group["advantages"] or itertools.repeat(None), strict=False,
    ):  # fmt: skip
        text = server.text(ids)
        assert ("echo right" in text, "echo wrong" in text) in ((False, False), (score == 1.0, score == 0.0))
        assert messages[-1]["role"] == "assistant"
        assert str(messages[-1]["content"]) in text
        expected = [0.0 if each == -100 else 2 * score - 1 for each in mask]
        assert advantages == (None if scope == "main" else expected)
    assert ("are trained" in caplog.text) == (scope != "all")
    (filled,) = filled_groups
    assert all(done.share < 0.5 if scope != "all" else 0.9 < done.share < 1.0 for done in filled.done)


async def test_settings_of_the_environment_bound_a_program(tokenizer: Path, tmp_path: Path) -> None:
    class Bounded(ProgramEnv):
        more = {**ProgramEnv.more, "env": {"NO_PROXY": "*"}, "gateway": {"max_roots": 3}}  # noqa: RUF012

    with serving(PolicyServer(load(tokenizer), Policy())) as server:
        env = make_env(
            Bounded, tokenizer, server.url, max_agent_turns=1, max_tokens_per_turn=200, sampling='{"seed": 3}',
            data_path_to_save_groups=str(tmp_path / "groups.jsonl"),
        )  # fmt: skip
        (group,) = await process(env, 1)
    assert sequences([group]) == sampled(server.log, 1)
    assert {(body["max_tokens"], body["temperature"], body["seed"]) for body in server.bodies} == {(200, 1.0, 3)}


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "toolsets": ({"toolsets": ["file"]}, {}, "toolsets are options of the AgentLoop"),
    "gateway": ({"gateway": {"max_root": 3}}, {}, "SandboxSpec.gateway.*max_root"),
    "gateway alone": ({"gateway": {"max_roots": 3}, "program": None}, {}, "gateway need program"),
    "system prompt": ({}, {"system_prompt": "Be brief."}, "one user message"),
    "missing": ({"program": ["no-such-program"]}, {}, "could not be started"),
    "never asks": ({"program": ["true"]}, {}, "sent no valid request"),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_mistake_of_a_program_ends_the_run(wrong: str, tokenizer: Path, tmp_path: Path) -> None:
    spec, settings, message = WRONG[wrong]

    class Wrong(ProgramEnv):
        more = {**ProgramEnv.more, **spec}  # noqa: RUF012

    with serving(PolicyServer(load(tokenizer), Policy())) as server:
        env = make_env(
            Wrong, tokenizer, server.url, max_failed_groups=2,
            data_path_to_save_groups=str(tmp_path / "groups.jsonl"), **settings,
        )  # fmt: skip
        with pytest.raises(EnvironmentStopped, match=message):
            await process(env, 1)
    assert server.log == []


async def test_program_needs_a_server_of_token_ids(tokenizer: Path, tmp_path: Path) -> None:
    with serving(PolicyServer(load(tokenizer), Policy(), "openai")) as server:
        path = str(tmp_path / "groups.jsonl")
        env = make_env(ProgramEnv, tokenizer, server.url, server_type="openai", data_path_to_save_groups=path)
        with pytest.raises(EnvironmentStopped, match="a chat server returns none"):
            await process(env, 1)
