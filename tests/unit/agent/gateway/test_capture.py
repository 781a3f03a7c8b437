"""Requests of a harness: which one continues which, which one is a retry, and what is sampled for it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import pytest

from hermes_agent.errors import AccessRefused, ContentFiltered, ContextExceeded, ModelError
from hermes_agent.gateway import budgets
from hermes_agent.gateway.capture import Capture
from hermes_agent.gateway.options import Gateway
from hermes_agent.gateway.request import Answer, GatewayError
from hermes_agent.messages import Completion, Message, TokenUsage, ToolCall, assistant_message
from hermes_agent.models import ScriptedModel
from hermes_exec.errors import ConfigError, ErrorCause
from tests.support.waiting import until
from tests.unit.agent.gateway.policy import Policy, answers_of, ask, fails, go_on
from tests.unit.agent.tokens.families import FAMILIES

BEGIN: list[Message] = [{"role": "system", "content": "Be good."}, {"role": "user", "content": "Hello"}]
PLAIN = FAMILIES["plain"]


def policy(calls: int = 0, **settings: Any) -> Policy:
    return Policy(PLAIN, answers_of(PLAIN, lambda _: calls), **settings)


def spaced(messages: list[Message]) -> list[Message]:
    return [
        {**each, "content": f"\n{each['content'].strip()} "} if each["role"] == "assistant" else each
        for each in messages
    ]


def in_parts(messages: list[Message]) -> list[Message]:
    return [
        {
            **each,
            "content": [{"type": "text", "text": each["content"][:3]}, {"type": "text", "text": each["content"][3:]}],
        }
        for each in messages
    ]


def without_thinking(messages: list[Message]) -> list[Message]:
    return [{name: value for name, value in each.items() if name != "reasoning_content"} for each in messages]


def as_developer(messages: list[Message]) -> list[Message]:
    return [{**messages[0], "role": "developer"}, *messages[1:]]


def with_other_ids(messages: list[Message]) -> list[Message]:
    text = json.dumps(messages)
    for number, call in enumerate(messages[2]["tool_calls"]):
        text = text.replace(call["id"], f"toolu_{number}")
    changed: list[Message] = json.loads(text)
    return changed


def with_other_white_space(messages: list[Message]) -> list[Message]:
    calls = messages[2]["tool_calls"]
    for call in calls:
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=1)
    return messages


def with_unknown_fields(messages: list[Message]) -> list[Message]:
    return [{**each, "refusal": None, "annotations": []} for each in messages]


def in_two_turns(messages: list[Message]) -> list[Message]:
    """The text and the calls as items of their own, as in the dialect of responses."""
    text, calls = dict(messages[2]), dict(messages[2])
    del text["tool_calls"]
    return [*messages[:2], text, {**calls, "content": None}, *messages[3:]]


@pytest.mark.parametrize(
    "rewrite",
    [
        spaced,
        in_parts,
        without_thinking,
        as_developer,
        with_other_ids,
        with_other_white_space,
        with_unknown_fields,
        in_two_turns,
    ],
)
async def test_request_with_the_same_meaning_continues(rewrite: Callable[[list[Message]], list[Message]]) -> None:
    sampler = policy(calls=2)
    async with Capture(sampler.model()) as capture:
        first = await ask(capture, BEGIN)
        second = await ask(capture, rewrite(go_on(BEGIN, first)))
    assert second.node.parent is first.node
    log = sampler.log
    assert log[1].prompt[: len(log[0].prompt) + len(log[0].ids)] == [*log[0].prompt, *log[0].ids]


def with_other_text(messages: list[Message]) -> list[Message]:
    return [*messages[:2], {**messages[2], "content": "else"}, *messages[3:]]


def with_other_arguments(messages: list[Message]) -> list[Message]:
    messages[2]["tool_calls"][0]["function"]["arguments"] = '{"x": "else"}'
    return messages


def with_other_system(messages: list[Message]) -> list[Message]:
    return [{"role": "system", "content": "Be bad."}, *messages[1:]]


def without_calls(messages: list[Message]) -> list[Message]:
    return [*messages[:2], {"role": "assistant", "content": messages[2]["content"]}, {"role": "user", "content": "?"}]


def compacted(messages: list[Message]) -> list[Message]:
    return [*messages[:1], {"role": "user", "content": "So far: nothing"}]


@pytest.mark.parametrize(
    "rewrite", [with_other_text, with_other_arguments, with_other_system, without_calls, compacted]
)
async def test_request_with_another_meaning_begins_a_root(rewrite: Callable[[list[Message]], list[Message]]) -> None:
    sampler = policy(calls=2)
    async with Capture(sampler.model()) as capture:
        first = await ask(capture, BEGIN)
        second = await ask(capture, rewrite(go_on(BEGIN, first)))
    assert second.node.parent is None
    assert capture.captured.roots == [first.node, second.node]
    assert capture.captured.main == [first.node]


async def test_swapped_results_are_another_conversation() -> None:
    """Ids of calls do not count, but which call a result answers does."""
    sampler = policy(calls=2)
    async with Capture(sampler.model()) as capture:
        first = await ask(capture, BEGIN)
        messages = go_on(BEGIN, first)
        messages[3]["content"], messages[4]["content"] = "of the first", "of the second"
        second = await ask(capture, messages)
        messages = go_on(messages, second)
        swapped = json.loads(json.dumps(messages))
        swapped[3]["tool_call_id"], swapped[4]["tool_call_id"] = swapped[4]["tool_call_id"], swapped[3]["tool_call_id"]
        third, other = await ask(capture, messages), await ask(capture, swapped)
    assert third.node.parent is second.node
    assert other.node.parent is first.node


async def test_other_tools_begin_a_root() -> None:
    sampler = policy()
    async with Capture(sampler.model()) as capture:
        first = await ask(capture, BEGIN)
        second = await ask(capture, go_on(BEGIN, first), tools=[])
        third = await ask(capture, go_on(BEGIN, first))
    assert (second.node.parent, third.node.parent) == (None, first.node)


async def test_request_continues_the_longest_conversation_and_may_branch() -> None:
    sampler = policy()
    async with Capture(sampler.model()) as capture:
        first = await ask(capture, BEGIN)
        second = await ask(capture, go_on(BEGIN, first))
        third = await ask(capture, go_on(go_on(BEGIN, first), second))
        branch = await ask(capture, go_on(BEGIN, first, "no"))
    assert [each.node.parent for each in (first, second, third, branch)] == [None, first.node, second.node, first.node]
    assert [each.shared for each in capture.captured.sequences()] == [
        0,
        len(sampler.log[0].prompt + sampler.log[0].ids),
    ]


async def test_answer_that_was_cut_at_another_role_is_not_continued() -> None:
    sampler = Policy(PLAIN, lambda number: f"#{number}# ls\n<tool_response>x</tool_response>")
    async with Capture(sampler.model()) as capture:
        first = await ask(capture, BEGIN)
        second = await ask(capture, go_on(BEGIN, first))
    assert second.node.parent is None


async def test_broken_call_becomes_text_and_is_continued() -> None:
    sampler = Policy(PLAIN, lambda number: f'#{number}# so\n<tool_call>\n{{"name": "do", "argum\n</tool_call>')
    async with Capture(sampler.model()) as capture:
        first = await ask(capture, BEGIN)
        second = await ask(capture, go_on(BEGIN, first))
    assert first.completion.tool_calls == ()
    assert first.completion.content is not None
    assert '{"name": "do", "argum' in first.completion.content
    assert second.node.parent is first.node


async def test_results_are_rendered_with_the_ids_that_the_model_wrote() -> None:
    family = FAMILIES["strict"]
    sampler = Policy(family, answers_of(family, lambda _: 2))
    async with Capture(sampler.model()) as capture:
        first = await ask(capture, BEGIN)
        await ask(capture, with_other_ids(go_on(BEGIN, first)))
    prompt = sampler.model().template.text(sampler.log[1].prompt)
    assert all(f'"call_id": "{call.id}"' in prompt for call in first.completion.tool_calls)


async def test_nodes_are_numbered_by_arrival() -> None:
    sampler = policy()
    gate = sampler.gate = anyio.Event()
    answers: dict[str, Answer] = {}

    async def send(text: str) -> None:
        answers[text] = await ask(capture, [{"role": "user", "content": text}])

    async with Capture(sampler.model()) as capture, anyio.create_task_group() as tasks:
        tasks.start_soon(send, "first")
        await until(lambda: sampler.calls == 1)
        sampler.gate = anyio.Event()
        sampler.gate.set()
        await send("second")
        gate.set()
    assert list(answers) == ["second", "first"]
    assert capture.captured.roots == [answers["first"].node, answers["second"].node]
    assert capture.captured.main == [answers["first"].node]


async def test_failure_of_the_model_is_no_answer_and_uses_no_budget(caplog: pytest.LogCaptureFixture) -> None:
    sampler = policy()
    sampler.failures = [fails(), RuntimeError("odd")]
    async with Capture(sampler.model(), Gateway(max_requests=1, max_roots=1)) as capture:
        for _ in range(2):
            with pytest.raises(GatewayError) as raised:
                await ask(capture, BEGIN)
            assert (raised.value.status, raised.value.code, raised.value.retry) == (500, "model_error", True)
            assert "secret.example" not in raised.value.message
        assert str(capture.failure) == str(fails())
        assert "secret.example" in caplog.text
        await ask(capture, BEGIN, retry_count=1)
        assert capture.failure is None


async def test_new_text_of_all_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver keeps it, also if the request fails. The text that a request repeats counts once."""
    monkeypatch.setattr(budgets, "MAX_CHARACTERS", 2_500)
    async with Capture(policy().model(), Gateway()) as capture:
        messages: list[Message] = [{"role": "user", "content": "x" * 900}]
        for _ in range(2):
            answer = await ask(capture, messages)
            messages += [assistant_message(answer.completion), {"role": "user", "content": "x" * 900}]
        with pytest.raises(GatewayError, match="budget") as raised:
            await ask(capture, messages)
        assert (raised.value.status, capture.exhausted, len(capture.captured.nodes)) == (429, "characters", 2)


async def test_clients_that_wait_for_one_sample_get_its_failure() -> None:
    sampler = policy()
    sampler.failures, sampler.gate = [fails()], anyio.Event()
    errors: list[int] = []

    async def send() -> None:
        with pytest.raises(GatewayError) as raised:
            await ask(capture, BEGIN, idempotency_key="a")
        errors.append(raised.value.status)

    async with Capture(sampler.model()) as capture, anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(send)
        await until(lambda: sampler.calls == 1)
        sampler.gate.set()
    assert (errors, sampler.calls) == ([500, 500], 1)


async def test_context_is_exceeded_by_the_last_request_only() -> None:
    async with Capture(policy().model(context_tokens=400)) as capture:
        first = await ask(capture, BEGIN)
        with pytest.raises(GatewayError) as raised:
            await ask(capture, go_on(BEGIN, first, "long " * 100))
        assert (raised.value.status, raised.value.code) == (400, "context_length_exceeded")
        assert capture.context_exceeded
        await ask(capture, go_on(BEGIN, first, "short"))
        assert not capture.context_exceeded


async def test_refusal_of_the_template_is_an_error_of_the_request() -> None:
    family = FAMILIES["strict"]
    async with Capture(Policy(family, answers_of(family)).model()) as capture:
        with pytest.raises(GatewayError, match="must alternate") as raised:
            await ask(capture, [{"role": "assistant", "content": "I begin"}])
        assert raised.value.status == 400
        assert capture.failure is None


async def test_sampling_of_the_caller_wins() -> None:
    sampler = policy()
    model = sampler.model(sampling={"temperature": 1.0, "stop_token_ids": [7]})
    async with Capture(model, Gateway(sampling={"top_p": 1.0, "max_tokens": 50})) as capture:
        await ask(capture, BEGIN, sampling={"temperature": 0.0, "top_p": 0.1, "stop": ["x"]}, max_tokens=90)
        await ask(capture, BEGIN, max_tokens=40)
    end = sampler.tokenizer.id_of("<|im_end|>")
    assert sampler.sampling[0].pop("stop_token_ids") == sorted([7, end])
    assert sampler.sampling[0] == {"max_tokens": 50, "temperature": 1.0, "top_p": 1.0, "stop": ["x"]}
    assert sampler.sampling[1]["max_tokens"] == 40


async def test_sampling_that_spoils_log_probabilities_is_worth_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Raw(Policy):
        def exact_at(self, sampling: Mapping[str, object]) -> bool:
            return sampling.get("temperature") in (None, 1)

    async with Capture(Raw(PLAIN, answers_of(PLAIN)).model()) as capture:
        for _ in range(2):
            await ask(capture, BEGIN, sampling={"temperature": 0.0})
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "log-probabilities" in caplog.text


async def test_helper_answers_other_names_and_is_not_trained() -> None:
    sampler, helper = policy(), ScriptedModel(["a title"])
    model = sampler.model()
    options = Gateway(models={"policy": model, "*": helper}, sampling={"temperature": 1.0}, max_roots=1)
    async with Capture(model, options) as capture:
        title = await ask(capture, BEGIN, model="haiku", sampling={"temperature": 0.0})
        first = await ask(capture, BEGIN)
        second = await ask(capture, go_on(BEGIN, first))
    assert (title.node.trained, title.completion.content, title.node.model) == (False, "a title", "haiku")
    assert helper.requests[0].sampling == {"temperature": 0.0}
    assert capture.captured.main == [first.node, second.node]
    assert len(capture.captured.nodes) == 3
    assert len(capture.captured.sequences()) == 1


async def test_models_are_checked() -> None:
    model = policy().model()
    async with Capture(model, Gateway(models={"policy": model})) as capture:
        with pytest.raises(GatewayError) as raised:
            await ask(capture, BEGIN, model="gpt")
        assert (raised.value.status, raised.value.code) == (404, "model_not_found")
    with pytest.raises(ConfigError, match="does not name the policy"):
        Capture(model, Gateway(models={"*": ScriptedModel([])}))
    with pytest.raises(ConfigError, match="not str"):
        Capture("gpt")  # type: ignore[arg-type]


async def test_model_without_ids_makes_records_but_no_sequences() -> None:
    call = ToolCall("call_1", "do", '{"n": 1.0}')
    model = ScriptedModel([Completion("hm", (call,), usage=TokenUsage(5, 6, 1, cost=0.5)), "Done."])
    async with Capture(model) as capture:
        first = await ask(capture, BEGIN)
        # A client in JavaScript wrote the number.
        messages = json.loads(json.dumps(go_on(BEGIN, first)).replace("1.0", "1"))
        second = await ask(capture, messages)
    assert capture.captured.main == [first.node, second.node]
    assert second.node.conversation == [*model.requests[1].messages, assistant_message(second.completion)]
    # The model reads its own answer, and the record connects its calls with their results.
    assert model.requests[1].messages[2] == assistant_message(first.completion)
    assert second.node.messages[0]["tool_call_id"] == "call_1"
    assert capture.usage.cost == 0.5
    with pytest.raises(ValueError, match="TokenModel"):
        capture.captured.sequences()


async def test_closing_ends_samples_and_refuses_requests() -> None:
    sampler = policy()
    sampler.gate = anyio.Event()
    errors: list[int] = []

    async def send() -> None:
        with pytest.raises(GatewayError) as raised:
            await ask(capture, BEGIN)
        errors.append(raised.value.status)

    async with anyio.create_task_group() as tasks:
        async with Capture(sampler.model()) as capture:
            tasks.start_soon(send)
            await until(lambda: sampler.calls == 1)
        await until(lambda: errors == [503])
        await send()
    assert (errors, capture.captured.nodes, capture.failure) == ([503, 503], [], None)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ContextExceeded("https://secret.example: too long", status=400), "context_length_exceeded"),
        (ContentFiltered("https://secret.example: no", status=400), "content_filter"),
        (ModelError("https://secret.example: top_k", cause=ErrorCause.CONFIG, status=422), "invalid_request"),
    ],
)
async def test_request_that_a_service_refuses_is_no_failure_of_the_model(
    error: ModelError, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Capture(ScriptedModel([error])) as capture:
        with pytest.raises(GatewayError) as raised:
            await ask(capture, BEGIN)
    assert (raised.value.status, raised.value.code, raised.value.retry) == (400, code, False)
    assert "secret.example" not in raised.value.message
    assert capture.failure is None
    assert capture.context_exceeded == (code == "context_length_exceeded")
    assert ("secret.example" in caplog.text) == (code != "context_length_exceeded")


async def test_account_without_credit_is_a_failure_of_the_model() -> None:
    """Anthropic answers with the status of an invalid request."""
    async with Capture(ScriptedModel([AccessRefused("credit balance is too low", status=400)])) as capture:
        with pytest.raises(GatewayError) as raised:
            await ask(capture, BEGIN)
    assert raised.value.status == 500
    assert isinstance(capture.failure, AccessRefused)


async def test_tools_without_end_are_refused() -> None:
    nested: dict[str, Any] = {}
    for _ in range(10_000):
        nested = {"properties": nested}
    async with Capture(policy().model()) as capture:
        with pytest.raises(GatewayError, match="too deeply"):
            await ask(capture, BEGIN, tools=[nested])


@pytest.mark.parametrize("call_id", ["call_0", ""])
async def test_calls_of_a_conversation_have_ids_of_their_own(call_id: str) -> None:
    """Claude Code drops a call whose id it knows: the model then never gets its result."""
    call = ToolCall(call_id, "sh", '{"command": "ls"}')
    async with Capture(ScriptedModel([Completion("", (call, call)), Completion("", (call,)), "Done."])) as capture:
        first = await ask(capture, BEGIN)
        second = await ask(capture, history := go_on(BEGIN, first))
        last = await ask(capture, go_on(history, second))
    ids = [each.id for answer in (first, second) for each in answer.completion.tool_calls]
    assert (len(set(ids)), "" in ids) == (3, False)
    conversation = last.node.conversation
    assert [each["tool_call_id"] for each in conversation if each["role"] == "tool"] == ids
