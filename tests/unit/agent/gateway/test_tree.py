"""The tree of answers: its main conversation, and its sequences for a trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pytest

from hermes_agent.gateway.capture import Capture
from hermes_agent.gateway.request import Answer
from hermes_agent.gateway.tree import Captured, SequenceScope
from hermes_agent.messages import Message
from hermes_agent.tokens import Sample, sequence
from tests.unit.agent.gateway.policy import Policy, answers_of, ask, go_on, request, trained_turns
from tests.unit.agent.tokens.families import FAMILIES

BEGIN: list[Message] = [{"role": "user", "content": "Hello"}]


def policy(calls: int = 0) -> Policy:
    return Policy(FAMILIES["plain"], answers_of(FAMILIES["plain"], lambda _: calls))


def user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def text_of(answer: Answer) -> str:
    return (answer.completion.content or "").strip()


def test_nothing_captured_is_empty() -> None:
    captured = Captured()
    assert (captured.main, captured.sequences(), captured.roots, captured.main_share) == ([], [], [], 1.0)


async def test_sequences_of_a_tree_train_shared_ids_once() -> None:
    sampler = policy()
    async with Capture(sampler.model()) as capture:
        first = await ask(capture, BEGIN)
        trunk = go_on(BEGIN, first)
        second = await ask(capture, trunk)
        await ask(capture, go_on(trunk, second, "left"))
        await ask(capture, go_on(trunk, second, "right"))
        await ask(capture, go_on(BEGIN, first, "no"))
        other = await ask(capture, user("a sub-agent"))
    log = sampler.log
    sequences = capture.captured.sequences()
    assert [each.root for each in sequences] == [0, 0, 0, 1]
    ends = [len(each.prompt) + len(each.ids) for each in log]
    assert [each.shared for each in sequences] == [0, ends[1], ends[0], 0]
    assert trained_turns(sequences) == [log[0], log[1], log[2], log[3], log[4], log[5]]
    assert capture.captured.roots == [first.node, other.node]


async def test_selection_leaves_out_answers_that_were_thrown_away() -> None:
    """The turns before an answer that was thrown away are trained, and the end of the main conversation always."""
    sampler = policy()
    async with Capture(sampler.model()) as capture:
        assert capture.captured.select("all") == []
        first = await ask(capture, BEGIN)
        part = await ask(capture, user("a part"))
        await ask(capture, go_on(user("a part"), part, "a summary that nothing uses"))
        await ask(capture, user("a title that nothing uses"))
        await ask(capture, go_on(BEGIN, first, f"a question about {text_of(part)}"))
        await ask(capture, go_on(BEGIN, first, "the end"))
        await ask(capture, user("a name for the directory"))
    log = sampler.log
    selected = {scope: trained_turns(capture.captured.select(scope)) for scope in get_args(SequenceScope)}
    assert selected == {"main": [log[0], log[5]], "root": [log[0], log[5]], "all": [log[0], log[5], log[1], log[6]]}
    assert [each.last.number for each in capture.captured.select("all")] == [5, 1, 6]
    assert capture.captured.sampled_ids == sum(len(each.ids) for each in log)


async def test_main_is_the_last_delivered_conversation_of_the_first_root() -> None:
    sampler = policy()
    async with Capture(sampler.model()) as capture:
        first = await ask(capture, BEGIN)
        second = await ask(capture, go_on(BEGIN, first))
        branch = await ask(capture, go_on(BEGIN, first, "no"))
        capture.note_undelivered(await capture.answer(request(go_on(BEGIN, first, "late"))))
        await ask(capture, user("after a compaction"))
        captured = capture.captured
        assert captured.main == [first.node, branch.node]
        turns = [node.completion.tokens for node in captured.main]
        # Alone it trains the ids that it shares with the other branch, too.
        trained = sequence([turn for turn in turns if turn is not None])
        assert trained.ids == [*sampler.log[2].prompt, *sampler.log[2].ids]
        assert sum(number != -100 for number in trained.mask) == len(sampler.log[0].ids + sampler.log[2].ids)
        sizes = [len(sampler.log[number].ids) for number in (0, 1, 2, 4)]
        assert captured.main_share == pytest.approx((sizes[0] + sizes[2]) / sum(sizes))
        third = await ask(capture, go_on(go_on(BEGIN, first), second))
        assert captured.main == [first.node, second.node, third.node]


async def test_conversation_of_a_node_has_all_messages_and_answers() -> None:
    sampler = policy(calls=2)
    async with Capture(sampler.model()) as capture:
        first = await ask(capture, BEGIN)
        second = await ask(capture, go_on(BEGIN, first))
    assert [message["role"] for message in second.node.conversation] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert [message["role"] for message in second.node.messages] == ["tool", "tool"]
    assert second.node.tools == first.node.tools


@pytest.mark.parametrize(
    ("follows", "continued"),
    [
        ("nothing", True),
        ("a new conversation", False),
        ("a quotation", True),
        ("a repetition with another system message", True),
    ],
)
async def test_answer_is_continued_if_something_uses_it(follows: str, continued: bool) -> None:
    """The summary of a compaction is an answer to a branch of the conversation, and begins the next one."""
    async with Capture(policy().model()) as capture:
        first = await ask(capture, BEGIN)
        summary = await ask(capture, go_on(BEGIN, first, "Summarise."))
        if follows == "a new conversation":
            await ask(capture, user("else"))
        elif follows == "a quotation":
            await ask(capture, user(f"So far: {text_of(summary)}. Go on."))
        elif follows == "a repetition with another system message":
            again = go_on(go_on(BEGIN, first, "Summarise."), summary)
            await ask(capture, [{"role": "system", "content": "New."}, *again])
    assert capture.captured.sequences()[0].continued == continued


async def test_calls_without_text_are_continued_if_they_are_repeated() -> None:
    family = FAMILIES["renders_calls"]
    sampler = Policy(family, answers_of(family, lambda _: 1))
    for repeats in (True, False):
        async with Capture(sampler.model()) as capture:
            first = await ask(capture, BEGIN)
            system = {"role": "system", "content": "New."}
            await ask(capture, [system, *(go_on(BEGIN, first) if repeats else user("else"))])
        assert capture.captured.sequences()[0].continued == repeats


async def test_missing_log_probabilities_are_named() -> None:
    class Silent(Policy):
        async def sample(self, ids: Sequence[int], *, max_tokens: int, **sampling: object) -> Sample:
            return (await super().sample(ids, max_tokens=max_tokens, **sampling))._replace(logprobs=None)

    async with Capture(Silent(FAMILIES["plain"], answers_of(FAMILIES["plain"])).model()) as capture:
        await ask(capture, BEGIN)
    assert capture.captured.sequences()[0].logprobs is None


async def test_node_of_a_long_conversation_prints_itself() -> None:
    async with Capture(policy().model(context_tokens=10**6)) as capture:
        answer, messages = await ask(capture, BEGIN), BEGIN
        for _ in range(40):
            messages = go_on(messages, answer)
            answer = await ask(capture, messages)
    assert len(repr(answer.node)) < 10_000
    assert len(answer.node.path()) == 41
