"""Groups: what is kept of those that were called off, and what must not be sent."""

from __future__ import annotations

from typing import Any

import pytest

from hermes_agent import AgentLoop, RolloutResult, Verdict
from hermes_agent.tokens import TokenModel, TokenSequence
from hermes_atropos.groups import (
    FinishedRollout,
    Group,
    KeptGroups,
    TrainedSequence,
    find_problem,
    finish_rollout,
    make_scored_data,
)
from hermes_atropos.metrics import RolloutTally, format_conversation
from hermes_exec import ErrorCause
from hermes_exec.results import PoolStats
from tests.unit.agent.tokens.families import FAMILIES
from tests.unit.agent.tokens.test_session import TOKENIZER, Told
from tests.unit.agent.toolboxes import FunctionTools, echo

DONE = FinishedRollout(RolloutResult(None), [TrainedSequence(TokenSequence([1], [1], [-1.0]), [])], 1.0)
STATS = PoolStats(
    sandboxes={}, slots_most=4, slots_total=4, slots_in_use=1, slots_free=3, slots_quarantined=0, waiting=0, launches=1,
    failures=0, calls=0, acquired=2, released=1, acquire_p50_s=0.1, acquire_p95_s=0.2,
)  # fmt: skip


def test_what_is_finished_is_kept_for_its_item_alone_and_not_for_ever() -> None:
    kept = KeptGroups(max_steps=2)
    item, other = {"a": 1}, {"a": 1}
    kept.keep(item, Group(0, (), step=5, done=[DONE]))
    assert kept.take(other, 5) is None
    found = kept.take(item, 7)
    assert found is not None
    assert found.done == [DONE]
    assert kept.take(item, 7) is None
    kept.keep(item, found)
    assert kept.take(item, 8) is None
    kept.keep(item, Group(1, (), step=5))
    assert kept.take(item, 5) is None


def test_several_groups_of_an_item_are_kept() -> None:
    """A short dataset comes round again before what was called off of it is taken up."""
    kept, item = KeptGroups(max_steps=2), ["a"]
    for number in range(2):
        kept.keep(item, Group(number, (), step=5, done=[DONE]))
    taken = [kept.take(item, 5) for _ in range(3)]
    assert [None if group is None else group.number for group in taken] == [0, 1, None]


def test_the_oldest_go_first() -> None:
    kept, items = KeptGroups(1), [[number] for number in range(70)]
    for item in items:
        kept.keep(item, Group(0, (), 0, [DONE]))
    assert [kept.take(item, 0) is not None for item in items] == [number >= 6 for number in range(70)]


def group(**changes: Any) -> dict[str, Any]:
    whole = {
        "tokens": [[1, 2], [3]], "masks": [[-100, 2], [3]], "scores": [0.0, 1.0],
        "inference_logprobs": [[1.0, -1.0], [-2.0]], "messages": None,
    }  # fmt: skip
    return {**whole, **changes}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"inference_logprobs": None}, None),
        ({"tokens": [[1, 2]]}, "1 sequences instead of 2"),
        ({"tokens": None}, "0 sequences instead of 2"),
        ({"masks": None}, "masks are of 0"),
        ({"scores": [1.0]}, "scores are of 1"),
        ({"masks": [[-100], [3]]}, "a mask of 1"),
        ({"inference_logprobs": [[1.0], [1.0]]}, "1 logprobs"),
        ({"messages": [[]]}, "messages are of 1"),
    ],
)
def test_what_a_trainer_could_not_read_is_told(changes: dict[str, Any], told: str | None) -> None:
    found = find_problem(group(**changes), 2)
    assert (found is None) == (told is None)
    assert told is None or (found is not None and told in found)


def test_a_tally_counts_and_begins_anew() -> None:
    tally = RolloutTally()
    tally.add(RolloutResult(None, cause=ErrorCause.INFRA))
    tally.add(RolloutResult(None, cause=ErrorCause.POLICY))
    tally.drop("infra")
    tally.reroll("hook")
    tally.add_share(0.25)
    tally.add_share(0.75)
    read = tally.read(STATS, [0.0, 0.5, 2.0])
    assert (read["train/rerolls_hook"], read["loop/late_s_max"], read["loop/late_s_p50"]) == (1, 2.0, 0.5)
    assert (read["train/infra_rate"], read["train/finish_infra"], read["train/groups_dropped_infra"]) == (0.5, 1.0, 1)
    assert read["train/trained_share"] == 0.5
    assert (read["pool/acquired"], read["pool/slots_in_use"]) == (2, 1)
    assert tally.read(STATS, ())["train/rollouts"] == 0


def test_a_conversation_for_people() -> None:
    called = {"function": {"name": "terminal", "arguments": '{"command": "ls"}'}}
    text = format_conversation(
        [{"role": "user", "content": "x" * 9000}, {"role": "assistant", "content": "", "tool_calls": [called]}]
    )
    assert "… 5000 characters …" in text
    assert '[assistant]\n→ terminal({"command": "ls"})' in text


@pytest.mark.parametrize(("answers", "whole"), [(["<tool_response>x", "ok"], False), (["ok<tool_response>x"], True)])
async def test_episode_that_restarts_after_an_invented_answer_is_not_trained_on(
    answers: list[str], whole: bool
) -> None:
    call = '<tool_call>{"name": "do", "arguments": {}}</tool_call>'
    sampler = Told(*(f"{call}{text}" if place < len(answers) - 1 else text for place, text in enumerate(answers)))
    model = TokenModel(sampler, FAMILIES["plain"].chat_template(TOKENIZER), sampling={"max_tokens": 500})
    episode = await AgentLoop(model, FunctionTools(echo)).run("go")
    result = RolloutResult(episode, Verdict(1.0, True))
    assert (episode.trainable, [error.kind for error in episode.errors]) == (True, ["invented_answer"])
    assert (finish_rollout(result) is not None) == whole


def test_group_with_several_sequences_of_a_rollout_has_the_mean_of_its_rollouts() -> None:
    def rollout(reward: float, count: int) -> FinishedRollout:
        one = TrainedSequence(TokenSequence([1, 2], [-100, 2], [1.0, -1.0]), [{"role": "user", "content": "go"}])
        return FinishedRollout(RolloutResult(None), [one] * count, reward)

    group = make_scored_data([rollout(1.0, 3), rollout(0.0, 1)], {}, phase=2)
    assert (group["scores"], group["group_overrides"]) == ([1.0, 1.0, 1.0, 0.0], {"group_size": 4})
    assert group["advantages"] == [[0.0, 1.0]] * 3 + [[0.0, -1.0]]
    assert find_problem(dict(group), 4) is None
    same = make_scored_data([rollout(1.0, 2), rollout(1.0, 1)], {}, phase=1)
    assert (same["advantages"], same["group_overrides"]) == ([[0.0, 0.0]] * 3, {"phase": 1, "group_size": 3})
    whole = make_scored_data([rollout(1.0, 1), rollout(0.0, 1)], {}, phase=2)
    assert (whole["advantages"], whole["group_overrides"]) == (None, {})
