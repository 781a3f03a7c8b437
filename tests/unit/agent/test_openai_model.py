"""The model behind an endpoint, against a real HTTP server on loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hermes_agent import AgentLoop, ContextExceeded, ModelError, OpenAIModel
from hermes_agent.errors import AccessRefused
from hermes_exec.errors import ConfigError, ErrorCause
from tests.unit.agent.endpoint import Answer, endpoint, ok, refusal
from tests.unit.agent.toolboxes import FunctionTools, echo

pytestmark = [pytest.mark.anyio, pytest.mark.loops]
TOOLS = [{"type": "function", "function": {"name": "do", "parameters": {"type": "object"}}}]
ASK = [{"role": "user", "content": "hi"}]
GOOD = ok({"content": "x"})
JSON = {"content-type": "application/json"}
HTML = Answer(200, b"<html><body>Sign in</body></html>", {"content-type": "text/html"})
CALL = '<tool_call>\n{"name": "do", "arguments": {"x": 1}}\n</tool_call>'


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_agent.models.endpoint._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("hermes_agent.models.pace._FIRST_PROBE_S", 0.01)


@asynccontextmanager
async def model(base_url: str, **options: Any) -> AsyncIterator[OpenAIModel]:
    made = OpenAIModel("m", base_url=base_url, api_key="k", **options)
    try:
        yield made
    finally:
        await made.aclose()


def tool_call(name: str | None, arguments: object, call_id: str | None = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def test_system_is_added_to_the_system_message_of_requests_only() -> None:
    begin = [{"role": "system", "content": "rules"}, *ASK]
    before = [dict(message) for message in begin]
    with endpoint(GOOD, GOOD, GOOD) as server:
        async with model(server.base_url, system="be brief", prefill=[{"role": "user", "content": "example"}]) as made:
            await made.complete(begin, [])
            await made.complete(ASK, [])
        async with model(server.base_url, system="be brief", text_tools=True) as made:
            await made.complete(begin, TOOLS)
    sent = [request["messages"] for request in server.requests]
    assert sent[0] == [{"role": "system", "content": "rules\n\nbe brief"}, {"role": "user", "content": "example"}, *ASK]
    assert sent[1] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "example"}, *ASK]
    assert sent[2][0]["content"].endswith("rules\n\nbe brief")
    assert begin == before


async def test_request_and_answer() -> None:
    said = {"content": "look", "tool_calls": [tool_call("do", '{"x": 1}')], "reasoning_content": "hm"}
    with endpoint(ok(said, "tool_calls")) as server:
        async with model(server.base_url) as made:
            done = await made.complete(ASK, TOOLS, temperature=0.5, max_tokens=None, top_k=3, seed=7)
    assert server.requests == [
        {"model": "m", "messages": ASK, "tools": TOOLS, "temperature": 0.5, "top_k": 3, "seed": 7}
    ]
    assert (server.paths, server.authorizations) == (["/v1/chat/completions"], ["Bearer k"])
    assert (done.content, done.reasoning, done.finish_reason, done.raw) == ("look", "hm", "stop", None)
    assert [(c.id, c.name, c.arguments, c.error) for c in done.tool_calls] == [("c1", "do", '{"x": 1}', None)]
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.requests) == (11, 3, 1)


async def test_without_tools_there_is_no_tool_choice() -> None:
    with endpoint(GOOD) as server:
        async with model(server.base_url) as made:
            await made.complete(ASK, [], tool_choice="none", parallel_tool_calls=False)
    assert set(server.requests[0]) == {"model", "messages"}


async def test_all_parameters_reach_the_wire() -> None:
    given = {"temperature": 0.1, "reasoning_effort": "high", "provider": {"order": ["a"], "allow_fallbacks": False}}
    with endpoint(GOOD) as server:
        async with model(server.base_url, sampling={**given, "extra_body": {"reasoning": {"enabled": True}}}) as made:
            await made.complete(ASK, TOOLS, temperature=1.0, stop=["\n"], tool_choice="auto")
    sent = {name: value for name, value in server.requests[0].items() if name not in ("model", "messages", "tools")}
    assert sent == {
        **given,
        "temperature": 1.0,
        "stop": ["\n"],
        "tool_choice": "auto",
        "reasoning": {"enabled": True},
    }


async def test_prefill_follows_the_system_messages() -> None:
    system, example = {"role": "system", "content": "be"}, {"role": "user", "content": "example"}
    said = {"role": "assistant", "content": "shown"}
    with endpoint(GOOD, GOOD) as server:
        async with model(server.base_url, prefill=[example, said]) as made:
            episode = await AgentLoop(made, FunctionTools(echo)).run([system, *ASK])
            await made.complete(ASK, [])
    assert server.requests[0]["messages"] == [system, example, said, *ASK]
    assert server.requests[1]["messages"] == [example, said, *ASK]
    assert episode.messages == [system, *ASK, {"role": "assistant", "content": "x"}]


async def test_a_stream_is_refused() -> None:
    with pytest.raises(ModelError, match="stream is a setting") as caught:
        await OpenAIModel("m", base_url="http://127.0.0.1:1/v1").complete(ASK, [], stream=True)
    assert caught.value.cause == ErrorCause.CONFIG


async def test_what_is_no_json_cannot_be_sent() -> None:
    with pytest.raises(ModelError, match="JSON") as caught:
        await OpenAIModel("m", base_url="http://127.0.0.1:1/v1").complete(ASK, [], logit_bias=object())
    assert caught.value.cause == ErrorCause.CONFIG


async def test_half_a_surrogate_pair_is_neither_taken_nor_sent() -> None:
    said = {"content": "a\ud83d", "reasoning_content": "\ude00b", "tool_calls": [tool_call("do", "\ud83d")]}
    with endpoint(ok(said), GOOD) as server:
        async with model(server.base_url) as made:
            done = await made.complete(ASK, TOOLS)
            await made.complete([{"role": "user", "content": "é \ud83d"}], [])
    assert (done.content, done.reasoning, done.tool_calls[0].arguments) == ("a\ufffd", "\ufffdb", "\ufffd")
    assert server.requests[1]["messages"] == [{"role": "user", "content": "é ?"}]


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({"reasoning_content": "a", "reasoning": "b"}, "a"),
        ({"reasoning_content": " ", "reasoning": "b"}, "b"),
        ({"reasoning_details": [{"index": 0, "text": "c"}, {"summary": "no"}, {"index": 2, "text": "d"}]}, "c\nd"),
        ({"reasoning_details": "c", "reasoning": 3}, None),
        ({}, None),
    ],
)
async def test_reasoning(fields: dict[str, Any], reasoning: str | None) -> None:
    with endpoint(ok({"content": "x", **fields})) as server:
        async with model(server.base_url) as made:
            assert (await made.complete(ASK, [])).reasoning == reasoning


@pytest.mark.parametrize(
    ("told", "finish"),
    [
        *(("length", "length"), ("content_filter", "content_filter"), ("tool_calls", "stop"), (None, "stop")),
        *(("", "stop"), ("STOP", "stop"), ("MAX_TOKENS", "length"), ("model_length", "length")),
        *(("SAFETY", "content_filter"), ("eos_token", "stop")),
    ],
)
async def test_finish_reason(told: object, finish: str) -> None:
    with endpoint(ok({"content": "x"}, told)) as server:
        async with model(server.base_url) as made:
            assert (await made.complete(ASK, [])).finish_reason == finish


@pytest.mark.parametrize("told", ["abort", "timeout", "insufficient_system_resource", {"type": "abort"}])
async def test_answer_that_ended_for_another_reason_is_lost(told: object) -> None:
    """An engine that was stopped in the middle has not told what the model says, and no call of it runs."""
    part = {"content": "The answ", "tool_calls": [{"id": "a", "function": {"name": "do", "arguments": ""}}]}
    with endpoint(ok(part, told), ok({"content": "The answer."})) as server:
        async with model(server.base_url) as made:
            assert (await made.complete(ASK, [])).content == "The answer."
        assert len(server.requests) == 2


@pytest.mark.parametrize(("tokens", "finish"), [(15, "stop"), (16, "length")])
async def test_calls_of_an_answer_of_all_tokens_were_cut(tokens: int, finish: str) -> None:
    """Some servers say `tool_calls` of an answer that the limit has cut."""
    calls = [{"id": "a", "function": {"name": "do", "arguments": "{}"}}]
    usage = {"completion_tokens": tokens, "prompt_tokens": 1}
    with endpoint(ok({"content": None, "tool_calls": calls}, "tool_calls", usage=usage)) as server:
        async with model(server.base_url) as made:
            done = await made.complete(ASK, [], max_tokens=16)
    assert (done.finish_reason, done.tool_calls[0].error is not None) == (finish, finish == "length")


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 2, "cost": 0.25}, (7, 2, 0.25)),
        ({"prompt_tokens": "7", "completion_tokens": -2, "cost": None}, (0, 0, 0)),
        (None, (0, 0, 0)),
        ([], (0, 0, 0)),
    ],
)
async def test_usage(usage: object, counts: tuple[int, int, float]) -> None:
    with endpoint(ok({"content": "x"}, usage=usage)) as server:
        async with model(server.base_url) as made:
            done = (await made.complete(ASK, [])).usage
    assert (done.prompt_tokens, done.completion_tokens, done.cost, done.requests) == (*counts, 1)


@pytest.mark.parametrize(
    ("message", "content", "calls"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]}, "ab", []),
        ({"content": 3, "tool_calls": None}, None, []),
        ({"content": None, "refusal": "I will not"}, "I will not", []),
        ({"content": None, "tool_calls": "x"}, None, []),
        ({"content": "", "tool_calls": [tool_call("do", {"x": 1})]}, None, [("do", '{"x": 1}', "c1")]),
        ({"tool_calls": [tool_call("do", None, None)]}, None, [("do", "{}", "call_0")]),
        ({"tool_calls": [None, {"function": 3}]}, None, [("", "{}", "call_0"), ("", "{}", "call_1")]),
    ],
)
async def test_odd_messages(message: dict[str, Any], content: str | None, calls: list[tuple[str, str, str]]) -> None:
    with endpoint(ok(message)) as server:
        async with model(server.base_url) as made:
            done = await made.complete(ASK, TOOLS)
    assert ((done.content or None), [(c.name, c.arguments, c.id) for c in done.tool_calls]) == (content, calls)
    assert all(bool(c.error) == (not c.name) for c in done.tool_calls)


async def test_calls_in_plain_text_are_read_by_the_parser() -> None:
    said = {"content": '<think>hm</think>ok <tool_call>{"name": "do", "arguments": {}}</tool_call>'}
    with endpoint(ok(said), ok(said)) as server:
        async with model(server.base_url, parser="hermes") as made:
            done = await made.complete(ASK, TOOLS)
        async with model(server.base_url) as plain:
            untouched = await plain.complete(ASK, TOOLS)
    assert ([c.name for c in done.tool_calls], done.content, done.reasoning) == (["do"], "ok", "hm")
    assert (done.raw, server.requests[0]["tools"]) == (said["content"], TOOLS)
    assert (untouched.tool_calls, untouched.content) == ((), said["content"])


BARE = '{"name": "do", "arguments": {}}'
QUOTED = 'Models write <tool_call>{"name": "other", "arguments": {}}</tool_call>.'


@pytest.mark.parametrize(
    ("text", "parser", "form"),
    [
        (CALL, None, "hermes"),
        (CALL, "mistral", "hermes"),
        ("[TOOL_CALLS]do{}", "hermes", "mistral"),
        ("<tool_call><function=do>\n</function></tool_call>", "hermes", None),
        ("<tool_call><function=do>\n</function></tool_call>", "kimi_k2", "qwen3_coder"),
        ('{"name": "do", "parameters": {}}', None, "llama3_json"),
        (QUOTED, None, None),
        (QUOTED, "mistral", None),
        (f"Write it between `<tool_call>` tags:\n```json\n{BARE}\n```", None, None),
        (f"[{BARE}]", None, "json"),
        ("<tool_call> is a tag", None, None),
        ('{"answer": 42}', None, None),
    ],
)
async def test_calls_that_no_parser_reads_are_a_problem(
    text: str,
    parser: str | None,
    form: str | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hermes_agent.parsers.unread_calls._WARNED", set())
    with endpoint(ok({"content": text}), ok({"content": text})) as server:
        async with model(server.base_url, parser=parser) as made:
            done = await made.complete(ASK, TOOLS)
            assert (await made.complete(ASK, [])).problems == ()
    assert [(each.kind, each.trainable) for each in done.problems] == ([("unread_calls", False)] if form else [])
    assert [f"set parser={form!r}" in record.getMessage() for record in caplog.records] == ([True] if form else [])


async def test_calls_of_a_closing_answer_are_no_problem() -> None:
    with endpoint(ok({"content": CALL})) as server:
        async with model(server.base_url) as made:
            assert (await made.complete(ASK, TOOLS, tool_choice="none")).problems == ()


async def test_episode_with_calls_that_no_parser_reads_is_not_trainable() -> None:
    with endpoint(ok({"content": CALL})) as server:
        async with model(server.base_url) as made:
            episode = await AgentLoop(made, FunctionTools(echo)).run(ASK)
    assert (episode.finish, episode.trainable, episode.errors[0].kind) == ("answered", False, "unread_calls")


async def test_text_mode_needs_no_tools_of_the_endpoint() -> None:
    system = {"role": "system", "content": "be brief"}
    cut = '<tool_call>{"name": "do", "arg</tool_call>'
    steps = [f"<think>hm</think>first {CALL}\n{CALL}", cut, "done"]
    with endpoint(*(ok({"content": step}) for step in steps)) as server:
        async with model(server.base_url, text_tools=True) as made:
            loop = AgentLoop(made, FunctionTools(echo))
            episode = await loop.run([system, *ASK])
    assert (episode.finish, episode.turns, len(episode.tool_calls)) == ("answered", 3, 3)
    last = server.requests[-1]
    assert set(last) == {"model", "messages", "temperature"}
    first, ask, called, results, broken, told = last["messages"]
    assert first["role"] == "system"
    assert '"name": "do"' in first["content"]
    assert first["content"].endswith("\n\nbe brief")
    assert ask == ASK[0]
    assert called == {"role": "assistant", "content": f"first\n{CALL}\n{CALL}"}
    assert results["role"] == told["role"] == "user"
    assert results["content"].count("<tool_response>") == 2
    assert broken["role"] == "assistant"
    assert '{"name": "do", "arg' in broken["content"]
    assert told["content"].count("<tool_response>") == 1


async def test_text_mode_without_tools_is_a_plain_conversation() -> None:
    history = [*ASK, {"role": "assistant", "content": "yes", "reasoning_content": "hm"}, *ASK]
    with endpoint(GOOD) as server:
        async with model(server.base_url, text_tools=True, parser="hermes") as made:
            await made.complete(history, [])
    assert server.requests[0]["messages"] == [*ASK, {"role": "assistant", "content": "yes"}, *ASK]


async def test_call_without_a_name_is_an_error_for_the_model() -> None:
    with endpoint(ok({"content": None, "tool_calls": [tool_call("", "{}", None)]})) as server:
        async with model(server.base_url) as made:
            done = await made.complete(ASK, TOOLS)
    assert done.tool_calls[0].error
    assert done.tool_calls[0].id


SOON = {"retry-after-ms": "1"}


@pytest.mark.parametrize(
    ("status", "headers"),
    [(408, {}), (429, SOON), (502, {}), (503, {}), (503, SOON), (521, {}), (529, {})],
)
async def test_refusals_before_the_work_are_no_tries(status: int, headers: dict[str, str]) -> None:
    with endpoint(*[refusal(status, **headers)] * 3, GOOD) as server:
        async with model(server.base_url, max_retries=0) as made:
            assert (await made.complete(ASK, [])).content == "x"
            assert made.status.away_s is None
    assert len(server.requests) == 4


async def test_an_outage_is_waited_out_for_a_bounded_time() -> None:
    with endpoint(refusal(503, "full")) as server:
        async with model(server.base_url, wait_outage_s=0) as made:
            with pytest.raises(ModelError, match=r"completed no request for 0 s.*HTTP 503.*full") as caught:
                await made.complete(ASK, [])
    assert (caught.value.status, caught.value.cause) == (503, ErrorCause.PROVIDER)


async def test_no_server() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        async with model(f"http://127.0.0.1:{free.getsockname()[1]}/v1", wait_outage_s=0) as made:
            with pytest.raises(ModelError, match="no connection") as caught:
                await made.complete(ASK, [])
    assert caught.value.cause == ErrorCause.PROVIDER


BROKEN = {
    "500": refusal(500),
    "504": refusal(504),
    "cut": Answer(200, GOOD.body, JSON, breaks="cut"),
    "reset": Answer(200, b"", breaks="reset"),
    "HTML": HTML,
    "half of the JSON": Answer(200, b'{"id":', JSON),
    "too deep": Answer(200, b"[" * 100_000, JSON),
    "nothing": Answer(200, b"", JSON),
    "a list": Answer(200, b"[]", JSON),
    "a text": Answer(200, b'"x"', JSON),
    "no choices": Answer(200, b"{}", JSON),
    "empty choices": Answer(200, b'{"choices": []}', JSON),
    "null": Answer(200, b'{"choices": [null]}', JSON),
    "no message": Answer(200, b'{"choices": [{"index": 0}]}', JSON),
    "an error": Answer(200, b'{"error": {"code": 502, "message": "bad upstream"}}', JSON),
    "an error in the choice": ok({"content": ""}, "error"),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
async def test_a_completion_that_was_lost_is_asked_for_again(broken: Answer) -> None:
    with endpoint(broken, broken, GOOD) as server:
        async with model(server.base_url, max_retries=2) as made:
            assert (await made.complete(ASK, [])).content == "x"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (refusal(500, "oh"), "m: HTTP 500: oh"),
        (BROKEN["cut"], "m: the connection broke"),
        (BROKEN["reset"], "m: the connection broke"),
        (HTML, "not JSON: <html>"),
        (BROKEN["nothing"], "not JSON: it is empty"),
        (BROKEN["empty choices"], "it has no choice"),
        (BROKEN["no message"], "no message"),
        (BROKEN["an error"], "bad upstream"),
    ],
)
@pytest.mark.parametrize("retries", [0, 1])
async def test_tries_are_bounded_and_can_be_switched_off(broken: Answer, says: str, retries: int) -> None:
    with endpoint(*[broken] * (retries + 1)) as server:
        async with model(server.base_url, max_retries=retries) as made:
            with pytest.raises(ModelError, match=says) as caught:
                await made.complete(ASK, [])
    assert (len(server.requests), caught.value.cause) == (retries + 1, ErrorCause.PROVIDER)


@pytest.mark.parametrize(
    ("status", "code", "kind", "cause"),
    [
        (400, None, ModelError, ErrorCause.CONFIG),
        (404, "model_not_found", ModelError, ErrorCause.CONFIG),
        (409, None, ModelError, ErrorCause.PROVIDER),
        (401, None, AccessRefused, ErrorCause.CONFIG),
        (402, None, AccessRefused, ErrorCause.CONFIG),
        (403, None, ModelError, ErrorCause.CONFIG),
        (429, "insufficient_quota", AccessRefused, ErrorCause.CONFIG),
    ],
)
async def test_what_cannot_succeed_is_an_error_at_once(
    status: int, code: str | None, kind: type[ModelError], cause: ErrorCause
) -> None:
    with endpoint(*[refusal(status, code=code)] * (2 if status == 400 else 1), GOOD) as server:
        async with model(server.base_url) as made:
            with pytest.raises(ModelError, match=f"m: HTTP {status}: no") as caught:
                await made.complete(ASK, [])
            assert (await made.complete(ASK, [])).content == "x"
    assert (type(caught.value), caught.value.status, caught.value.cause) == (kind, status, cause)


async def test_account_without_credit_is_refused_access() -> None:
    answer = refusal(400, "Your credit balance is too low to access the Anthropic API.")
    with endpoint(*[answer] * 2) as server:
        async with model(server.base_url) as made:
            with pytest.raises(AccessRefused, match="credit balance"):
                await made.complete(ASK, [])


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (400, "x", "context_length_exceeded"),
        (400, "This model's maximum context length is 8192 tokens", None),
        (500, "exceeds the available context size", None),
        (413, "prompt is too long", None),
        (400, "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000", None),
        (400, "Input is too long for requested model.", None),
        (400, "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]", None),
        (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", None),
        (400, "Invalid request: Your request exceeded model token limit: 8192", None),
        (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000", None),
        (400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096.", None),
        (400, "This model's maximum prompt length is 131072 but the request contains 140000 tokens.", None),
        (400, "Prompt exceeds max length", "1261"),
    ],
)
async def test_too_long_conversation(status: int, message: str, code: str | None) -> None:
    with endpoint(refusal(status, message, code)) as server:
        async with model(server.base_url) as made:
            with pytest.raises(ContextExceeded):
                await made.complete(ASK, [])


async def test_silence_is_asked_again() -> None:
    released = threading.Event()

    def silent() -> Answer:
        released.wait(60)
        return GOOD

    with endpoint(silent, silent) as server:
        async with model(server.base_url, timeout_s=2, max_retries=1) as made:
            with pytest.raises(ModelError, match=r"no piece of an answer within 2 s"):
                await made.complete(ASK, [])
        released.set()
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"connect_timeout_s": -1},
        {"max_retries": -1},
        {"wait_outage_s": -1},
        {"wait_outage_s": float("nan")},
        {"parser": "x"},
        {"base_url": "localhost:8000"},
        {"prefill": [{"content": "x"}]},
    ],
)
async def test_settings_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        OpenAIModel("m", **options)


def test_openai_itself_needs_a_key() -> None:
    with pytest.raises(ConfigError, match="needs an api_key"):
        OpenAIModel("gpt-5")
    assert OpenAIModel("gpt-5", api_key="sk-x").model == "gpt-5"


async def test_more_than_one_choice_is_refused() -> None:
    with endpoint() as server:
        async with model(server.base_url) as made:
            with pytest.raises(ModelError, match="n must be 1"):
                await made.complete(ASK, [], n=4)
    assert server.requests == []
