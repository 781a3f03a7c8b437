"""The clients of OpenAI and of Anthropic read every answer of the gateway, and its types accept it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import anyio
import openai
import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from typing_extensions import TypeForm

from hermes_agent.gateway.request import GatewayError
from hermes_agent.messages import Completion, ToolCall
from tests.unit.agent.gateway.canned import CALLS, CUT, KEY, TEXT, USAGE, CannedCapture, serve

FILTERED = Completion("", finish_reason="content_filter", usage=USAGE)
BARE_CALL = Completion(None, (ToolCall("call00001", "terminal", "{}"),), usage=USAGE)
EMPTY = Completion(None, usage=USAGE)
COMPLETIONS = {"text": TEXT, "calls": CALLS, "cut": CUT, "filtered": FILTERED, "bare": BARE_CALL, "empty": EMPTY}
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
every_completion = pytest.mark.parametrize("completion", COMPLETIONS.values(), ids=COMPLETIONS)
ASK: Any = [{"role": "user", "content": "Hi"}]


@asynccontextmanager
async def openai_client(capture: CannedCapture, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with serve(capture, **options) as port:
        url = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=2, timeout=60) as client:
            yield client


@asynccontextmanager
async def anthropic_client(capture: CannedCapture, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with serve(capture, **options) as port:
        url = f"http://127.0.0.1:{port}"
        async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=2, timeout=60) as client:
            yield client


def check(model: TypeForm[object], value: openai.BaseModel | anthropic.BaseModel) -> None:
    """Validate strictly what the client has only constructed."""
    TypeAdapter(model).validate_python(value.to_dict(mode="json"))


@every_completion
async def test_chat_completion_is_read(completion: Completion) -> None:
    async with openai_client(CannedCapture([completion])) as client:
        answer = await client.chat.completions.create(model="policy", messages=ASK)
    check(ChatCompletion, answer)
    (choice,) = answer.choices
    assert (choice.message.content or "") == (completion.content or "")
    assert choice.message.model_extra is not None
    assert choice.message.model_extra.get("reasoning_content") == completion.reasoning
    calls = [call for call in choice.message.tool_calls or () if call.type == "function"]
    assert [(c.id, c.function.name, c.function.arguments) for c in calls] == [c[:3] for c in completion.tool_calls]
    assert choice.finish_reason == ("tool_calls" if completion.tool_calls else completion.finish_reason)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (50, 7, 57)


@every_completion
@pytest.mark.parametrize("headers_after_s", [60.0, 0.0], ids=["plain", "kept_alive"])
async def test_chat_stream_is_read(completion: Completion, headers_after_s: float) -> None:
    capture = CannedCapture([lambda: anyio.sleep(0.05), completion])
    async with openai_client(capture, headers_after_s=headers_after_s, keep_alive_s=0.01) as client:
        stream = await client.chat.completions.create(
            model="policy", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    for chunk in chunks:
        check(ChatCompletionChunk, chunk)
    first, last, usage = chunks
    (choice,) = first.choices
    assert (choice.delta.content or "") == (completion.content or "")
    assert [(c.index, c.id) for c in choice.delta.tool_calls or ()] == [
        (index, call.id) for index, call in enumerate(completion.tool_calls)
    ]
    assert last.choices[0].finish_reason == ("tool_calls" if completion.tool_calls else completion.finish_reason)
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.total_tokens == 57
    assert capture.deliveries == [True]


async def test_chat_stream_has_usage_only_on_request() -> None:
    async with openai_client(CannedCapture()) as client:
        stream = await client.chat.completions.create(model="policy", messages=ASK, stream=True)
        assert [chunk.usage async for chunk in stream] == [None, None]


@every_completion
async def test_anthropic_message_is_read(completion: Completion) -> None:
    async with anthropic_client(CannedCapture([completion])) as client:
        answer = await client.messages.create(model="policy", max_tokens=100, messages=ASK)
    check(AnthropicMessage, answer)
    check_anthropic(answer, completion)


@every_completion
@pytest.mark.parametrize("headers_after_s", [60.0, 0.0], ids=["plain", "kept_alive"])
async def test_anthropic_stream_is_read(completion: Completion, headers_after_s: float) -> None:
    capture = CannedCapture([lambda: anyio.sleep(0.05), completion])
    async with anthropic_client(capture, headers_after_s=headers_after_s, keep_alive_s=0.01) as client:
        async with client.messages.stream(model="policy", max_tokens=100, messages=ASK) as stream:
            answer = await stream.get_final_message()
        check_anthropic(answer, completion)
        raw = await client.messages.create(model="policy", max_tokens=100, messages=ASK, stream=True)
        events = [event async for event in raw]
    for event in events:
        check(RawMessageStreamEvent, event)
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")


def check_anthropic(answer: AnthropicMessage, completion: Completion) -> None:
    assert "".join(block.text for block in answer.content if block.type == "text") == (completion.content or "")
    uses = [(block.id, block.name) for block in answer.content if block.type == "tool_use"]
    assert uses == [(call.id, call.name) for call in completion.tool_calls]
    stop = {"length": "max_tokens", "content_filter": "refusal"}.get(completion.finish_reason, "end_turn")
    assert answer.stop_reason == ("tool_use" if completion.tool_calls else stop)
    assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens, answer.usage.output_tokens) == (30, 20, 7)


async def test_anthropic_input_is_the_object_of_the_arguments() -> None:
    async with anthropic_client(CannedCapture([CALLS])) as client:
        answer = await client.messages.create(model="policy", max_tokens=100, messages=ASK)
    inputs = [block.input for block in answer.content if block.type == "tool_use"]
    assert inputs == [{"command": "ls", "timeout_s": 1.5}, {"path": "a"}]


@every_completion
async def test_response_is_read(completion: Completion) -> None:
    async with openai_client(CannedCapture([completion])) as client:
        answer = await client.responses.create(model="policy", input="Hi")
    check(Response, answer)
    check_response(answer, completion)


@every_completion
@pytest.mark.parametrize("headers_after_s", [60.0, 0.0], ids=["plain", "kept_alive"])
async def test_response_stream_is_read(completion: Completion, headers_after_s: float) -> None:
    capture = CannedCapture([lambda: anyio.sleep(0.05), completion])
    async with openai_client(capture, headers_after_s=headers_after_s, keep_alive_s=0.01) as client:
        async with client.responses.stream(model="policy", input="Hi") as stream:
            events = [event async for event in stream]
        raw = [event async for event in await client.responses.create(model="policy", input="Hi", stream=True)]
    for event in raw:
        check(ResponseStreamEvent, event)
    last = events[-1]
    assert last.type == ("response.completed" if completion.finish_reason == "stop" else "response.incomplete")
    check_response(last.response, completion)
    deltas = [event.delta for event in raw if event.type == "response.output_text.delta"]
    assert "".join(deltas) == (completion.content or "")
    arguments = [event.delta for event in raw if event.type == "response.function_call_arguments.delta"]
    assert arguments == [call.arguments for call in completion.tool_calls]
    assert [event.sequence_number for event in raw] == list(range(len(raw)))


def check_response(answer: Response, completion: Completion) -> None:
    assert answer.output_text == (completion.content or "")
    calls = [(item.call_id, item.name, item.arguments) for item in answer.output if item.type == "function_call"]
    assert calls == [call[:3] for call in completion.tool_calls]
    assert answer.status == ("completed" if completion.finish_reason == "stop" else "incomplete")
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    details = answer.incomplete_details
    assert (details.reason if details else None) == reasons.get(completion.finish_reason)
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (50, 7, 57)


async def test_conversation_with_tools_comes_back_as_it_was_answered() -> None:
    """The clients' own objects are sent back, and are read as the messages of chat completions."""
    capture = CannedCapture([CALLS])
    calls = [
        {"id": "call00001", "type": "function", "function": {"name": "terminal"}},
        {"id": "call00002", "type": "function", "function": {"name": "read"}},
    ]
    arguments = ['{"command": "ls", "timeout_s": 1.5}', '{"path": "a"}']
    answered = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call00001", "content": "one"},
        {"role": "tool", "tool_call_id": "call00002", "content": "two"},
    ]
    async with openai_client(capture) as client:
        chat = await client.chat.completions.create(model="policy", messages=ASK)
        results: Any = answered[2:]
        assistant: Any = chat.choices[0].message.to_dict()
        await client.chat.completions.create(model="policy", messages=[*ASK, assistant, *results])
        response = await client.responses.create(model="policy", input=ASK)
        outputs: Any = [
            {"type": "function_call_output", "call_id": m["tool_call_id"], "output": m["content"]} for m in results
        ]
        items: Any = [item.to_dict() for item in response.output]
        await client.responses.create(model="policy", input=[*ASK, *items, *outputs])
    async with anthropic_client(capture) as client:
        message = await client.messages.create(model="policy", max_tokens=100, messages=ASK)
        blocks: Any = [
            {"type": "tool_result", "tool_use_id": m["tool_call_id"], "content": m["content"]} for m in results
        ]
        turn: Any = {"role": "assistant", "content": message.content}
        await client.messages.create(
            model="policy", max_tokens=100, messages=[*ASK, turn, {"role": "user", "content": blocks}]
        )
    for request in capture.requests[1::2]:
        messages = request.messages
        assistant = messages[1]
        assert [call["function"].pop("arguments") for call in assistant["tool_calls"]] == arguments
        assistant.pop("reasoning_content", None)
        assert messages == answered


OPENAI_ERRORS: dict[int, tuple[GatewayError, type[openai.APIStatusError]]] = {
    400: (GatewayError(400, "too long", "context_length_exceeded"), openai.BadRequestError),
    413: (GatewayError(413, "too large", "request_too_large"), openai.APIStatusError),
    429: (GatewayError(429, "used up", "budget", kind="budget"), openai.RateLimitError),
    500: (GatewayError(500, "sampler failed", kind="server_error"), openai.InternalServerError),
}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("status", OPENAI_ERRORS)
async def test_openai_error_is_read_and_not_repeated(status: int, stream: bool) -> None:
    error, kind = OPENAI_ERRORS[status]
    capture = CannedCapture([error])
    async with openai_client(capture) as client:
        with pytest.raises(kind) as chat:
            await client.chat.completions.create(model="policy", messages=ASK, stream=stream)
        with pytest.raises(kind) as response:
            await client.responses.create(model="policy", input="Hi", stream=stream)
    for info in (chat, response):
        assert info.value.status_code == status
        assert (info.value.code or "", info.value.type) == (error.code, error.kind)
        assert error.message in str(info.value)
    assert len(capture.requests) == 2


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("status", OPENAI_ERRORS)
async def test_anthropic_error_is_read_and_not_repeated(status: int, stream: bool) -> None:
    error, _ = OPENAI_ERRORS[status]
    capture = CannedCapture([error])
    async with anthropic_client(capture) as client:
        with pytest.raises(anthropic.APIStatusError, match=error.message) as info:
            await client.messages.create(model="policy", max_tokens=100, messages=ASK, stream=stream)
    types = {400: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error"}
    assert info.value.status_code == status
    assert info.value.body is not None
    assert info.value.body["error"]["type"] == types[status]  # type: ignore[index]
    assert len(capture.requests) == 1


async def test_anthropic_client_knows_that_it_has_to_compact() -> None:
    capture = CannedCapture([GatewayError(400, "10 tokens above", "context_length_exceeded")])
    async with anthropic_client(capture) as client:
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 10 tokens above"):
            await client.messages.create(model="policy", max_tokens=100, messages=ASK)


@pytest.mark.parametrize("error", [GatewayError(500, "sampler failed", retry=True)])
async def test_client_repeats_a_request_with_a_mark(error: GatewayError) -> None:
    capture = CannedCapture([error, TEXT])
    async with openai_client(capture) as client:
        await client.chat.completions.create(model="policy", messages=ASK)
    assert [request.retry_count for request in capture.requests] == [0, 1]
    capture = CannedCapture([error, TEXT])
    async with anthropic_client(capture) as other:
        await other.messages.create(model="policy", max_tokens=100, messages=ASK)
    assert [request.retry_count for request in capture.requests] == [0, 1]


async def test_error_after_the_headers_is_an_event() -> None:
    error = GatewayError(429, "used up", "budget", kind="budget")
    capture = CannedCapture([lambda: anyio.sleep(0.05), error])
    options = {"headers_after_s": 0.0, "keep_alive_s": 0.01}
    async with openai_client(capture, **options) as client:
        stream = await client.chat.completions.create(model="policy", messages=ASK, stream=True)
        with pytest.raises(openai.APIError, match="used up"):
            [chunk async for chunk in stream]
        capture.outcomes.insert(0, lambda: anyio.sleep(0.05))
        events = [event async for event in await client.responses.create(model="policy", input="Hi", stream=True)]
    (failed,) = events
    assert failed.type == "response.failed"
    assert failed.response.error is not None
    assert (failed.response.error.code, failed.response.error.message) == ("budget", "used up")
    capture.outcomes.insert(0, lambda: anyio.sleep(0.05))
    async with anthropic_client(capture, **options) as other:
        messages = await other.messages.create(model="policy", max_tokens=100, messages=ASK, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="used up"):
            [event async for event in messages]


async def test_wrong_key_is_refused() -> None:
    async with serve(capture := CannedCapture()) as port:
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="hx-tess") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(model="policy", messages=ASK)
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        async with anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{port}", api_key="hx-tes") as other:
            with pytest.raises(anthropic.AuthenticationError):
                await other.messages.create(model="policy", max_tokens=100, messages=ASK)
            with pytest.raises(anthropic.AuthenticationError):
                await other.messages.count_tokens(model="policy", messages=ASK)
    assert capture.requests == []


async def test_models_and_token_counts_are_read() -> None:
    async with openai_client(CannedCapture()) as client:
        assert [model.id async for model in client.models.list()] == ["policy", "helper"]
    async with anthropic_client(CannedCapture()) as other:
        assert [model.id async for model in other.models.list()] == ["policy", "helper"]
        short = await other.messages.count_tokens(model="policy", messages=ASK)
        long = await other.messages.count_tokens(model="policy", messages=[{"role": "user", "content": "word " * 4000}])
    assert 1 <= short.input_tokens < 50
    assert 4000 <= long.input_tokens <= 6000


async def test_requests_with_keep_alive_share_a_connection() -> None:
    capture = CannedCapture([CALLS])
    async with openai_client(capture) as client:
        for stream in (False, True, False):
            answer = await client.chat.completions.create(model="policy", messages=ASK, stream=stream)
            if not isinstance(answer, ChatCompletion):
                [chunk async for chunk in answer]
    assert capture.deliveries == [True] * 3
