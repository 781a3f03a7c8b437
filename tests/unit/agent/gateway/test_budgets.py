"""Budgets of a gateway: each is exact, and names itself."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from hermes_agent.gateway.capture import Capture
from hermes_agent.gateway.options import Gateway
from hermes_agent.gateway.request import GatewayError
from hermes_agent.messages import Completion, Message, TokenUsage
from hermes_agent.models import ScriptedModel
from hermes_exec.errors import ConfigError
from tests.support.waiting import until
from tests.unit.agent.gateway.policy import Policy, answers_of, ask, go_on
from tests.unit.agent.tokens.families import FAMILIES

pytestmark = pytest.mark.loops

BEGIN: list[Message] = [{"role": "user", "content": "Hello"}]


def policy() -> Policy:
    return Policy(FAMILIES["plain"], answers_of(FAMILIES["plain"]))


async def assert_refused(capture: Capture, name: str, messages: list[Message]) -> None:
    with pytest.raises(GatewayError, match=name) as raised:
        await ask(capture, messages)
    assert (raised.value.status, raised.value.code, raised.value.retry) == (429, name, False)
    assert capture.exhausted == name


async def test_requests_are_counted_exactly() -> None:
    sampler = policy()
    async with Capture(sampler.model(), Gateway(max_requests=2)) as capture:
        first = await ask(capture, BEGIN)
        assert (await ask(capture, BEGIN, retry_count=1)) is first
        await ask(capture, go_on(BEGIN, first))
        assert capture.exhausted == ""
        await assert_refused(capture, "max_requests", BEGIN)
    assert sampler.calls == 2


async def test_requests_at_once_are_counted_exactly() -> None:
    sampler = policy()
    refusals: list[str] = []

    async def send(number: int) -> None:
        try:
            await ask(capture, [{"role": "user", "content": f"{number}"}])
        except GatewayError as error:
            refusals.append(error.code)

    async with Capture(sampler.model(), Gateway(max_requests=3)) as capture, anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(send, number)
    assert (sampler.calls, refusals) == (3, ["max_requests"] * 5)


async def test_roots_are_counted_exactly() -> None:
    async with Capture(policy().model(), Gateway(max_roots=1)) as capture:
        first = await ask(capture, BEGIN)
        await assert_refused(capture, "max_roots", BEGIN)
        await ask(capture, go_on(BEGIN, first))


async def test_answer_is_cut_at_the_end_of_the_tokens() -> None:
    sampler = policy()
    async with Capture(sampler.model(), Gateway(max_tokens=90)) as capture:
        messages = BEGIN
        answers = []
        while True:
            try:
                answers.append(await ask(capture, messages))
            except GatewayError:
                break
            messages = go_on(messages, answers[-1])
        await assert_refused(capture, "max_tokens", BEGIN)
    assert sum(len(logged.ids) for logged in sampler.log) == capture.usage.completion_tokens == 90
    assert [answer.completion.finish_reason for answer in answers] == ["stop"] * (len(answers) - 1) + ["length"]


@pytest.mark.parametrize("max_tokens", [None, 60])
async def test_answers_at_once_use_no_more_tokens_than_there_are(max_tokens: int | None) -> None:
    """An answer waits for the part that others may need. None is cut because of what others then leave."""
    sampler = policy()
    sampler.gate = anyio.Event()
    refusals: list[str] = []
    reasons: list[str] = []

    async def send(number: int) -> None:
        try:
            answer = await ask(capture, [{"role": "user", "content": f"{number}"}], max_tokens=max_tokens)
            reasons.append(answer.completion.finish_reason)
        except GatewayError as error:
            refusals.append(error.code)

    budget = 400
    async with (
        Capture(sampler.model(context_tokens=250), Gateway(max_tokens=budget)) as capture,
        anyio.create_task_group() as tasks,
    ):
        for number in range(20):
            tasks.start_soon(send, number)
        await until(lambda: sampler.calls == (1 if max_tokens is None else budget // 60))
        sampler.gate.set()
    used = sum(len(logged.ids) for logged in sampler.log)
    assert used == budget
    assert reasons.count("length") <= 1
    assert len(reasons) + len(refusals) == 20
    assert set(refusals) == {"max_tokens"}


async def test_cost_ends_requests_once_it_is_reached() -> None:
    model = ScriptedModel(
        [Completion("a", usage=TokenUsage(cost=0.6)), Completion("b", usage=TokenUsage(cost=0.6)), "c"]
    )
    async with Capture(model, Gateway(max_cost=1.0)) as capture:
        first = await ask(capture, BEGIN)
        second = await ask(capture, go_on(BEGIN, first))
        await assert_refused(capture, "max_cost", go_on(go_on(BEGIN, first), second))
    assert capture.usage.cost == 1.2


async def test_hosted_model_gets_a_limit_only_from_a_request_or_the_options() -> None:
    model = ScriptedModel([Completion("a", usage=TokenUsage(completion_tokens=60)), "b", "c"])
    async with Capture(model, Gateway(max_tokens=100)) as capture:
        await ask(capture, BEGIN)
        await ask(capture, BEGIN, max_tokens=90)
        await ask(capture, BEGIN, max_tokens=9)
    assert [request.sampling for request in model.requests] == [{}, {"max_tokens": 40}, {"max_tokens": 9}]


@pytest.mark.parametrize(
    "options", [{"max_requests": 0}, {"max_tokens": 0}, {"max_roots": 0}, {"max_cost": 0.0}, {"models": {}}]
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Gateway(**options)
