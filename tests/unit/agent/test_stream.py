"""Streamed answers: the same as whole ones, whatever the pieces are; a limit on silence, not on the whole."""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hermes_agent import AgentLoop, Completion, ContextExceeded, ModelError, TokenUsage
from hermes_agent.messages import assistant_message
from hermes_agent.models.chat_answer import read_answer
from hermes_agent.models.chat_stream import ChunkAssembler
from hermes_agent.models.endpoint import BadAnswer
from hermes_agent.models.events import EventDecoder
from tests.unit.agent.endpoint import EVENTS, Answer, chunks_of, endpoint, events, ok, refusal
from tests.unit.agent.servers import raw_server
from tests.unit.agent.test_openai_model import ASK, TOOLS, model, tool_call
from tests.unit.agent.toolboxes import FunctionTools, echo

pytestmark = [pytest.mark.anyio, pytest.mark.loops]
DETAILS = [
    {"type": "reasoning.text", "text": "I look at it first.", "signature": "c2ln", "format": "x", "index": 0},
    {"type": "reasoning.encrypted", "data": "gAAAA==", "id": "c1", "format": "y", "index": 1},
]
SIGNED = {**tool_call("do", '{"x": "lång"}'), "extra_content": {"google": {"thought_signature": "c2lnbmVk"}}}
WHOLE = ok(
    {"content": "I do it.", "tool_calls": [SIGNED, tool_call("do", "{}", "c2")], "reasoning_details": DETAILS},
    "tool_calls",
)
CHUNKS = chunks_of(json.loads(WHOLE.body))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_agent.models.endpoint._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("hermes_agent.models.pace._FIRST_PROBE_S", 0.01)


def stream(body: bytes = b"", drips: list[bytes | float] | None = None) -> Answer:
    return Answer(200, body, EVENTS, drips=drips)


async def completed(*answers: Answer, tries: int = 0, **options: Any) -> tuple[Completion, int]:
    with endpoint(*answers) as server:
        async with model(server.base_url, max_retries=tries, **options) as made:
            done = await made.complete(ASK, TOOLS)
        return done, len(server.requests)


def check_whole(done: Completion) -> None:
    assert done == read_answer(json.loads(WHOLE.body), None)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (11, 3)


async def test_stream_is_asked_for_with_usage_and_read_as_a_whole_answer() -> None:
    with endpoint(WHOLE, WHOLE) as server:
        async with model(server.base_url) as made, model(server.base_url, stream=False) as whole:
            check_whole(await made.complete(ASK, TOOLS))
            check_whole(await whole.complete(ASK, TOOLS))
        assert server.streams == [(True, {"include_usage": True}), (None, None)]


@pytest.mark.parametrize(
    ("stream", "max_tokens", "streams"),
    [("auto", None, True), ("auto", 32_000, True), ("auto", 2_400, False), (True, 100, True), (False, None, False)],
)
async def test_short_answers_are_not_streamed_by_default(stream: object, max_tokens: int | None, streams: bool) -> None:
    with endpoint(WHOLE) as server:
        async with model(server.base_url, stream=stream) as made:
            check_whole(await made.complete(ASK, TOOLS, max_tokens=max_tokens))
        assert server.streams[0][0] is (True if streams else None)


def with_comments(body: bytes) -> bytes:
    return body.replace(b"data: ", b": OPENROUTER PROCESSING\n\nevent: message\nid: 3\ndata: ")


@pytest.mark.parametrize(
    "body",
    [
        events(CHUNKS, line_end="\r\n"),
        events(CHUNKS, line_end="\r"),
        events(CHUNKS, done=False),
        events(CHUNKS, done=False).rstrip(b"\n"),
        events(CHUNKS).replace(b"data: ", b"data:"),
        with_comments(events(CHUNKS)),
        b"\xef\xbb\xbf" + events(CHUNKS),
        events(CHUNKS).replace(b', "choices"', b',\ndata: "choices"'),
        events([*CHUNKS[:-2], {**CHUNKS[-2], "usage": CHUNKS[-1]["usage"]}]),
    ],
    ids=["CRLF", "CR", "no DONE", "no last line", "no space", "comments", "BOM", "several lines", "usage at once"],
)
async def test_stream_in_every_dialect(body: bytes) -> None:
    check_whole((await completed(stream(body)))[0])


async def test_a_stream_of_stated_length_does_not_wait_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_agent.models.answer_body._COLLECT_S", 60.0)
    body = events(CHUNKS)
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with raw_server([head, partial(time.sleep, 0.1), body]) as server, anyio.fail_after(20):
        async with model(server.url, timeout_s=1200.0) as made:
            check_whole(await made.complete(ASK, TOOLS))


@given(cuts=st.lists(st.integers(0, len(events(CHUNKS)))), line_end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_stream_may_be_cut_anywhere(cuts: list[int], line_end: str) -> None:
    body, decoder, assembler = events(CHUNKS, line_end=line_end), EventDecoder(), ChunkAssembler()
    places = sorted({0, len(body), *cuts})
    pieces = [body[begin:end] for begin, end in pairwise(places)]
    data = [each for piece in pieces for each in decoder.feed(piece)]
    data += decoder.finish()
    assert data.pop() == "[DONE]"
    for each in data:
        assembler.add(json.loads(each))
    check_whole(read_answer(assembler.answer(ended=True), None))


ERROR = {
    "error": {"code": 502, "message": "bad upstream"},
    "choices": [{"index": 0, "delta": {}, "finish_reason": "error"}],
}
LOST = {
    "cut": (stream(events(CHUNKS[:5], done=False)), "broke off"),
    "connection cut": (Answer(200, events(CHUNKS), EVENTS, breaks="cut"), "the connection broke"),
    "error": (stream(events([*CHUNKS[:5], ERROR])), "bad upstream"),
    "error of vLLM": (stream(events([*CHUNKS[:5], {"error": {"message": "engine died", "code": 500}}])), "engine died"),
    "garbage": (stream(events(CHUNKS[:5], done=False) + b"data: <html>\n\n"), "not JSON: <html>"),
    "cut JSON": (stream(events(CHUNKS, done=False)[:300]), "not JSON"),
    "nothing": (stream(b""), "the stream is empty"),
    "comments": (stream(b": PROCESSING\n\n" * 9), "the stream is empty"),
    "DONE alone": (stream(b"data: [DONE]\n\n"), "the stream is empty"),
    "null": (stream(b"data: null\n\n"), "the stream is empty"),
}


@pytest.mark.parametrize(("lost", "says"), LOST.values(), ids=LOST)
async def test_stream_that_breaks_off_is_a_lost_completion(lost: Answer, says: str) -> None:
    done, requests = await completed(lost, WHOLE, tries=1)
    check_whole(done)
    assert requests == 2
    with pytest.raises(ModelError, match=says):
        await completed(lost)


async def test_long_answer_in_drips_costs_one_request() -> None:
    body = events(CHUNKS)
    drips: list[bytes | float] = []
    for at in range(0, len(body), len(body) // 16):
        drips += [body[at : at + len(body) // 16], 0.5]
    done, requests = await completed(stream(drips=drips), timeout_s=2, tries=4)
    check_whole(done)
    assert requests == 1


async def test_silence_in_the_middle_of_an_answer_is_a_lost_completion() -> None:
    silent = stream(drips=[events(CHUNKS[:5], done=False), 60.0])
    done, requests = await completed(silent, WHOLE, timeout_s=1, tries=1)
    check_whole(done)
    assert requests == 2
    with pytest.raises(ModelError, match=r"no piece of an answer within 1 s"):
        await completed(silent, timeout_s=1)


def every_tenth_second(piece: bytes, times: int) -> list[bytes | float]:
    drips: list[bytes | float] = [piece, 0.1]
    return drips * times


EMPTY: dict[str, Any] = {"role": "assistant", "content": "", "reasoning": None, "tool_calls": []}
KEEP_ALIVES = {
    "comments": b": OPENROUTER PROCESSING\n\n",
    "blank events": b"event: ping\n\n",
    "data without a choice": b"data: {}\n\n",
    "empty deltas": events([{"choices": [{"index": 0, "delta": EMPTY, "finish_reason": None}]}], done=False),
    "usage": events([{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 0}}], done=False),
}


@pytest.mark.parametrize("begun", [0, 5])
@pytest.mark.parametrize("keep_alive", KEEP_ALIVES.values(), ids=KEEP_ALIVES)
async def test_keep_alives_are_silence(keep_alive: bytes, begun: int) -> None:
    drips: list[bytes | float] = [events(CHUNKS[:begun], done=False), *every_tenth_second(keep_alive, 200)]
    done, requests = await completed(stream(drips=drips), WHOLE, timeout_s=1, tries=1)
    check_whole(done)
    assert requests == 2


async def test_blank_lines_before_a_whole_answer_are_silence() -> None:
    whole = Answer(200, b"", {"content-type": "application/json"}, drips=every_tenth_second(b"\n", 200))
    done, requests = await completed(whole, WHOLE, timeout_s=1, tries=1, stream=False)
    check_whole(done)
    assert requests == 2


async def test_keep_alives_before_an_answer_are_waited_for() -> None:
    drips: list[bytes | float] = [*every_tenth_second(KEEP_ALIVES["comments"], 5), events(CHUNKS)]
    done, requests = await completed(stream(drips=drips), timeout_s=5)
    check_whole(done)
    assert requests == 1


@pytest.mark.parametrize("done", [True, False])
async def test_stream_that_stays_open_after_its_end_is_whole(done: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_agent.models.answer_body._USAGE_S", 0.5)
    check_whole((await completed(stream(drips=[events(CHUNKS, done=done), 60.0]), timeout_s=5))[0])


async def test_end_of_a_stream_that_stays_open_is_not_waited_for_as_usage_is() -> None:
    """The end comes in a piece of its own; the wait for usage is as long as the silence that loses an answer."""
    drips: list[bytes | float] = [events(CHUNKS, done=False), 0.2, b"data: [DONE]\n\n", 60.0]
    check_whole((await completed(stream(drips=drips), timeout_s=4))[0])


@pytest.mark.parametrize("rest", [b"", b"data: [DO", b"data: [DONE]\n\n"])
async def test_connection_that_breaks_after_the_end_of_a_stream_loses_nothing(rest: bytes) -> None:
    body = events(CHUNKS, done=False) + rest
    broken = Answer(200, body, {**EVENTS, "content-length": str(len(body) + 9)}, drips=[body])
    check_whole((await completed(broken))[0])


async def test_connection_is_used_again_after_a_stream() -> None:
    with endpoint(WHOLE, WHOLE) as server:
        async with model(server.base_url) as made:
            for _ in range(2):
                await made.complete(ASK, TOOLS)
        assert server.connections == 1


@pytest.mark.parametrize("status", [400, 422])
async def test_endpoint_that_refuses_to_stream_gives_whole_answers(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    refused = refusal(status, "streaming is not supported")
    with endpoint(refused, WHOLE, WHOLE) as server:
        async with model(server.base_url) as made:
            check_whole(await made.complete(ASK, TOOLS))
            check_whole(await made.complete(ASK, TOOLS))
        assert server.streams == [(True, {"include_usage": True}), (None, None), (None, None)]
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "m does not stream its answers: each has timeout_s for all of it"
    ]


async def test_endpoint_that_refuses_usage_streams_without(caplog: pytest.LogCaptureFixture) -> None:
    refused = refusal(400, "Extra inputs are not permitted: stream_options")
    with endpoint(refused, stream(events(CHUNKS[:-1])), stream(events(CHUNKS[:-1]))) as server:
        async with model(server.base_url) as made:
            for _ in range(2):
                assert (await made.complete(ASK, TOOLS)).usage.completion_tokens == 0
        assert server.streams == [(True, {"include_usage": True}), (True, None), (True, None)]
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert "without counting their tokens" in warned[0]


async def test_requests_at_the_same_time_warn_once_of_uncounted_tokens(caplog: pytest.LogCaptureFixture) -> None:
    with endpoint(*[stream(events(CHUNKS[:-1]))] * 8) as server:
        async with model(server.base_url) as made, anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(made.complete, ASK, TOOLS)
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert "without counting their tokens" in warned[0]


async def test_endpoint_that_ignores_stream_is_read_as_it_is() -> None:
    with endpoint(WHOLE, streams=False) as server:
        async with model(server.base_url) as made:
            check_whole(await made.complete(ASK, TOOLS))


async def test_refusal_of_the_request_itself_is_not_asked_again_once_streams_came() -> None:
    with endpoint(WHOLE, refusal(400, "bad image")) as server:
        async with model(server.base_url) as made:
            await made.complete(ASK, TOOLS)
            with pytest.raises(ModelError, match="bad image"):
                await made.complete(ASK, TOOLS)
        assert len(server.requests) == 2


async def test_full_context_is_no_refusal_to_stream() -> None:
    with endpoint(refusal(400, "x", "context_length_exceeded")) as server:
        async with model(server.base_url) as made:
            with pytest.raises(ContextExceeded):
                await made.complete(ASK, TOOLS)
        assert len(server.requests) == 1


def read(*deltas: dict[str, Any]) -> Completion:
    assembler = ChunkAssembler()
    for delta in deltas:
        assembler.add({"choices": [{"index": 0, "delta": delta}]})
    assembler.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    return read_answer(assembler.answer(ended=True), None)


def piece(
    index: int | None, call_id: str | None = None, name: str | None = None, arguments: str = ""
) -> dict[str, Any]:
    where = {} if index is None else {"index": index}
    return {"tool_calls": [{**where, "id": call_id, "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize(
    "deltas",
    [
        [piece(0, "a", "do", "{"), piece(1, "b", "go", "{"), piece(0, None, None, "}"), piece(1, None, None, "}")],
        [piece(0, "a", "do", "{}"), piece(0, "b", "go", "{}")],
        [piece(None, "a", "do", "{}"), piece(None, "b", "go", "{}")],
        [piece(None, "a", "do", "{"), piece(None, None, None, "}"), piece(None, "b", "go", "{}")],
        [piece(0, "a", "do", "{"), piece(0, "a", "do", "}"), piece(1, "b", "go", "{}")],
        [piece(0, "a", "d"), piece(0, None, "o"), piece(0, None, None, "{}"), piece(1, "b", "go", "{}")],
        [piece(3, "a", "do", "{}"), piece(7, "b", "go", "{}")],
        [piece(None, "a", "do", "{"), piece(None, "a", "do", "}"), piece(None, "b", "go", "{}")],
    ],
    ids=["mixed", "Gemini", "no index", "no index, pieces", "name in each", "name in pieces", "holes", "id in each"],
)
def test_calls_are_put_together_by_index_and_id(deltas: list[dict[str, Any]]) -> None:
    assert [call[:3] for call in read(*deltas).tool_calls] == [("a", "do", "{}"), ("b", "go", "{}")]


@pytest.mark.parametrize(
    "deltas",
    [
        [piece(0, "", "do", "{}"), piece(0, "", "do", "{}"), piece(0, "", "go", "{}")],
        [piece(0, None, "do"), piece(0, None, None, "{}"), piece(0, None, "do", "{}"), piece(0, None, "go", "{}")],
        [piece(0, None, "do", "{"), piece(0, None, "do", "}"), piece(1, None, "do", "{}"), piece(2, None, "go", "{}")],
        [piece(None, None, "do", "{}"), piece(None, None, "do", "{}"), piece(None, None, "go", "{}")],
    ],
)
def test_calls_without_ids_are_told_apart(deltas: list[dict[str, Any]]) -> None:
    assert [call[1:3] for call in read(*deltas).tool_calls] == [("do", "{}"), ("do", "{}"), ("go", "{}")]


@pytest.mark.parametrize("chunk", [{"detail": "died"}, {"message": "died", "code": 500}, {"message": "died"}])
def test_error_without_the_word_is_no_part_of_an_answer(chunk: dict[str, Any]) -> None:
    assembler = ChunkAssembler()
    assembler.add({"choices": [{"delta": {"content": "The answ"}}]})
    with pytest.raises(BadAnswer, match="it broke off: died"):
        assembler.add(chunk)


@pytest.mark.parametrize("arguments", ["", "{", "{}", '{"x": 1'])
def test_call_that_may_be_cut_is_lost_where_nothing_says_why_the_stream_ended(arguments: str) -> None:
    assembler = ChunkAssembler()
    assembler.add({"choices": [{"delta": {"tool_calls": [piece(0, "a", "do", arguments)]}}]})
    with pytest.raises(BadAnswer, match="without a reason"):
        assembler.answer(ended=True)
    assembler.add({"choices": [], "usage": {"completion_tokens": 3}})
    assert len(read_answer(assembler.answer(ended=True), None).tool_calls) == 1


@pytest.mark.parametrize("in_choice", [True, False])
def test_usage_of_a_stream_is_read_from_the_choice_too(in_choice: bool) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "cached_tokens": 5}
    assembler = ChunkAssembler()
    assembler.add({"choices": [{"delta": {"content": "one"}}], "usage": None})
    last = {"delta": {}, "finish_reason": "stop"}
    assembler.add({"choices": [last | {"usage": usage}]} if in_choice else {"choices": [last], "usage": usage})
    assert read_answer(assembler.answer(ended=True), None).usage == TokenUsage(9, 4, 1, 0, 0, 5)


def test_empty_finish_reason_is_no_end() -> None:
    assembler = ChunkAssembler()
    assembler.add({"choices": [{"delta": {"content": "one "}, "finish_reason": ""}]})
    assert not assembler.finished
    with pytest.raises(BadAnswer, match="broke off"):
        assembler.answer(ended=False)


def test_cut_stream_keeps_what_was_cut() -> None:
    assembler = ChunkAssembler()
    assembler.add({"choices": [{"delta": piece(0, "a", "do", '{"x": 1')}]})
    assembler.add({"choices": [{"delta": {}, "finish_reason": "length"}]})
    done = read_answer(assembler.answer(ended=False), None)
    assert (done.finish_reason, done.tool_calls[0].arguments) == ("length", '{"x": 1')


@pytest.mark.parametrize("streamed", [True, False])
async def test_what_a_provider_signed_is_sent_back_as_it_was(streamed: bool) -> None:
    with endpoint(WHOLE, ok({"content": "done"})) as server:
        async with model(server.base_url, stream=streamed) as made:
            episode = await AgentLoop(made, FunctionTools(echo)).run("hi")
        sent = server.requests[1]["messages"][1]
    assert sent["reasoning_details"] == DETAILS
    assert sent["tool_calls"][0] == {key: SIGNED[key] for key in ("id", "type", "function", "extra_content")}
    assert "extra_content" not in sent["tool_calls"][1]
    assert episode.messages[1] == sent


async def test_ids_that_a_signature_names_stay_as_they_are() -> None:
    """Gateways number the calls of each turn from 0."""
    with endpoint(WHOLE, WHOLE, ok({"content": "done"})) as server:
        async with model(server.base_url) as made:
            episode = await AgentLoop(made, FunctionTools(echo)).run("hi")
        sent = server.requests[2]["messages"]
    assert [message.get("tool_call_id") for message in sent if message["role"] == "tool"][0::2] == ["c1", "c1"]
    assert episode.finish == "answered"


NAMES = (
    *("choices", "delta", "message", "index", "tool_calls", "function", "name", "arguments", "id", "type", "text"),
    *("reasoning_details", "reasoning", "content", "extra_content", "usage", "finish_reason", "error", "object"),
)
LEAVES = (
    st.none() | st.booleans() | st.integers(-1, 2) | st.floats() | st.sampled_from(["", "x", "error", "reasoning.text"])
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
)
CHOICE = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("delta", "message", "index", "finish_reason", "usage"), JSON)
)
CHUNK = st.fixed_dictionaries({"choices": st.lists(CHOICE, max_size=2)}, optional={"usage": JSON, "error": JSON}) | JSON
DELTA = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4)
CALLS = st.fixed_dictionaries({"tool_calls": st.lists(st.dictionaries(st.sampled_from(NAMES), JSON), max_size=3)})


@example([{"choices": [{"delta": {"reasoning_details": [{"text": [None]}]}}]}])
@given(st.lists(CHUNK | (DELTA | CALLS).map(lambda delta: {"choices": [{"delta": delta}]}), max_size=6))
def test_hostile_chunks_are_an_answer_or_none(chunks: list[Any]) -> None:
    assembler = ChunkAssembler()
    with suppress(BadAnswer):
        for chunk in chunks:
            assembler.add(chunk)
        done = read_answer(assembler.answer(ended=True), None)
        assert all(isinstance(part, str) for call in done.tool_calls for part in call[:3])
        assert done.content is None or isinstance(done.content, str)
        assistant_message(done)
