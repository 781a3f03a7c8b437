"""Repeated requests: which of them get an answer that was sampled before."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from hermes_agent.gateway.capture import Capture
from hermes_agent.gateway.options import Gateway
from hermes_agent.messages import Message
from tests.support.waiting import until
from tests.unit.agent.gateway.policy import Policy, answers_of, ask, go_on, request
from tests.unit.agent.tokens.families import FAMILIES

pytestmark = pytest.mark.loops

BEGIN: list[Message] = [{"role": "system", "content": "Be good."}, {"role": "user", "content": "Hello"}]


def policy() -> Policy:
    return Policy(FAMILIES["plain"], answers_of(FAMILIES["plain"]))


@pytest.mark.parametrize("retry_count", [0, 1])
async def test_retry_joins_the_sample_of_a_client_that_went_away(retry_count: int) -> None:
    """A client whose timeout is shorter than the sample: one sample, one leaf, also without a mark."""
    sampler = policy()
    sampler.gate = anyio.Event()
    async with Capture(sampler.model()) as capture:
        for number in range(3):
            async with anyio.create_task_group() as client:
                client.start_soon(ask_and_forget, capture, retry_count if number else 0)
                await until(lambda: sampler.calls == 1)
                client.cancel_scope.cancel()
        sampler.gate.set()
        answer = await ask(capture, BEGIN, retry_count=retry_count)
    assert (sampler.calls, capture.captured.nodes, answer.node.delivered) == (1, [answer.node], True)
    assert len(capture.captured.sequences()) == 1


async def ask_and_forget(capture: Capture, retry_count: int) -> None:
    await capture.answer(request(BEGIN, retry_count=retry_count))


async def test_marked_retry_gets_the_same_answer_until_it_is_continued() -> None:
    async with Capture(policy().model(), Gateway(max_requests=3)) as capture:
        first = await ask(capture, BEGIN)
        again = await ask(capture, BEGIN, retry_count=1)
        assert again is first
        second = await ask(capture, go_on(BEGIN, first))
        other = await ask(capture, BEGIN, retry_count=1)
        assert other is not first
        assert (await ask(capture, go_on(BEGIN, first), retry_count=2)) is second
        assert len(capture.captured.nodes) == 3


async def test_idempotency_key_marks_a_retry() -> None:
    async with Capture(policy().model()) as capture:
        first = await ask(capture, BEGIN, idempotency_key="a")
        other = await ask(capture, BEGIN, idempotency_key="b")
        assert (await ask(capture, BEGIN, idempotency_key="a")) is first
        assert (await ask(capture, BEGIN, idempotency_key="b")) is other
        assert other is not first
        changed = await ask(capture, [*BEGIN, {"role": "user", "content": "else"}], idempotency_key="a")
        assert changed is not first


@pytest.mark.parametrize(
    "change", [{"max_tokens": 9}, {"sampling": {"temperature": 0.5}}, {"model": "other"}, {"tools": []}]
)
async def test_mark_on_an_unequal_request_is_no_retry(change: dict[str, Any]) -> None:
    async with Capture(policy().model()) as capture:
        first = await ask(capture, BEGIN)
        assert (await ask(capture, BEGIN, retry_count=1, **change)) is not first


async def test_equal_requests_without_a_mark_are_two_samples() -> None:
    sampler = policy()
    async with Capture(sampler.model()) as capture:
        answers = [await ask(capture, BEGIN) for _ in range(2)]
        sampler.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(ask, capture, BEGIN)
            await until(lambda: sampler.calls == 4)
            sampler.gate.set()
    assert answers[0] is not answers[1]
    assert len(capture.captured.roots) == 4


async def test_undelivered_answer_is_no_leaf_and_is_given_again() -> None:
    sampler = policy()
    async with Capture(sampler.model(), Gateway(max_requests=2)) as capture:
        first = await capture.answer(request(BEGIN))
        capture.note_undelivered(first)
        assert capture.captured.sequences() == []
        assert capture.captured.main == []
        other = await ask(capture, [*BEGIN[:1], {"role": "user", "content": "else"}])
        assert [each.root for each in capture.captured.sequences()] == [1]
        assert (await ask(capture, BEGIN)) is first
        assert [each.root for each in capture.captured.sequences()] == [0, 1]
        assert capture.captured.main == [first.node]
        assert other.node.delivered


async def test_request_that_its_client_left_is_noted_until_a_later_one_is_answered() -> None:
    """An answer to an earlier request does not count: the harness may have gone on without the later one."""
    sampler = policy()
    async with Capture(sampler.model()) as capture:
        early = await capture.answer(request([*BEGIN, {"role": "user", "content": "a title"}]))
        sampler.gate = anyio.Event()
        async with anyio.create_task_group() as client:
            client.start_soon(ask_and_forget, capture, 0)
            await until(lambda: sampler.calls == 2)
            client.cancel_scope.cancel()
        capture.note_delivered(early)
        assert capture.left is not None
        assert (capture.left.number, capture.left.parent) == (1, None)
        sampler.gate.set()
        again = await capture.answer(request(BEGIN))
        capture.note_undelivered(again)
        assert capture.left is not None
        later = await capture.answer(request(go_on(BEGIN, again)))
        capture.note_undelivered(later)
        assert capture.left.parent is again.node
        await ask(capture, go_on(BEGIN, again))
        assert capture.left is None


async def test_client_that_left_an_answer_that_another_one_gets_is_not_noted() -> None:
    sampler = policy()
    sampler.gate = anyio.Event()
    async with Capture(sampler.model()) as capture, anyio.create_task_group() as tasks:
        tasks.start_soon(ask, capture, BEGIN)
        await until(lambda: sampler.calls == 1)
        async with anyio.create_task_group() as client:
            client.start_soon(ask_and_forget, capture, 1)
            await anyio.wait_all_tasks_blocked()
            client.cancel_scope.cancel()
        assert capture.left is None
        sampler.gate.set()


async def test_request_that_continues_an_answer_proves_its_delivery() -> None:
    async with Capture(policy().model()) as capture:
        first = await capture.answer(request(BEGIN))
        capture.note_undelivered(first)
        second = await capture.answer(request(go_on(BEGIN, first)))
        capture.note_undelivered(second)
    assert (first.node.delivered, second.node.delivered) == (True, False)
    (sequence,) = capture.captured.sequences()
    assert sequence.ids[-1] == first.node.completion.tokens.ids[-1]  # type: ignore[union-attr]
