"""How requests of each dialect are read, and which are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_agent.gateway.anthropic import AnthropicMessages
from hermes_agent.gateway.dialect import Dialect, read_json
from hermes_agent.gateway.message_order import arrange_messages
from hermes_agent.gateway.openai import ChatCompletions
from hermes_agent.gateway.request import Answer, ChatRequest, GatewayError
from hermes_agent.gateway.responses import Responses
from hermes_agent.gateway.tree import Node
from hermes_agent.messages import Completion, Message, ToolCall

USER = {"role": "user", "content": "Hi"}
CHAT: Mapping[str, Any] = {"model": "policy", "messages": [USER]}
ANTHROPIC: Mapping[str, Any] = {**CHAT, "max_tokens": 100}
RESPONSES: Mapping[str, Any] = {"model": "policy", "input": [USER]}
BASES: Mapping[type[Dialect], Mapping[str, Any]] = {
    ChatCompletions: CHAT,
    AnthropicMessages: ANTHROPIC,
    Responses: RESPONSES,
}
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}


def read(kind: type[Dialect], fields: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> ChatRequest:
    return kind({**BASES[kind], **fields}, headers or {}).request


def answer_of(completion: Completion) -> Answer:
    return Answer("a0", Node(None, completion, b"", 0, 0, "policy", (), ()), completion)


def users(*contents: object) -> list[Any]:
    return [{"role": "user", "content": content} for content in contents]


REFUSED: list[tuple[type[Dialect], dict[str, Any], str]] = [
    (ChatCompletions, {"model": None}, "model is missing"),
    (ChatCompletions, {"messages": None}, "there is no message"),
    (ChatCompletions, {"messages": []}, "there is no message"),
    (ChatCompletions, {"messages": {}}, "messages is no list"),
    (ChatCompletions, {"messages": [1]}, "role None"),
    (ChatCompletions, {"messages": [{"role": "function", "content": ""}]}, "role 'function'"),
    (ChatCompletions, {"messages": users(1)}, "no text"),
    (ChatCompletions, {"messages": users([IMAGE])}, "'image_url'"),
    (ChatCompletions, {"messages": [{"role": "tool", "content": "a"}]}, "names no call"),
    (ChatCompletions, {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "arguments"),
    (ChatCompletions, {"n": 2}, "n must be 1"),
    (ChatCompletions, {"logprobs": True}, "logprobs"),
    (ChatCompletions, {"response_format": {"type": "json_object"}}, "JSON mode"),
    (ChatCompletions, {"response_format": {"type": "json_schema", "json_schema": {}}}, "JSON mode"),
    (ChatCompletions, {"tool_choice": "required"}, "tool_choice"),
    (ChatCompletions, {"tool_choice": {"type": "function", "function": {"name": "terminal"}}}, "tool_choice"),
    (ChatCompletions, {"tools": [{"type": "function", "function": {}}]}, "no name"),
    (ChatCompletions, {"tools": "terminal"}, "tools is no list"),
    (ChatCompletions, {"max_tokens": 0}, "max_tokens"),
    (ChatCompletions, {"max_tokens": "9"}, "max_tokens"),
    (ChatCompletions, {"temperature": "hot"}, "temperature"),
    (ChatCompletions, {"temperature": float("nan")}, "temperature"),
    (ChatCompletions, {"temperature": 10**400}, "temperature is no number below"),
    (ChatCompletions, {"top_k": 1.5}, "top_k is no integer"),
    (ChatCompletions, {"seed": -(2**63)}, "seed is no integer"),
    (ChatCompletions, {"max_tokens": 10**400}, "max_tokens"),
    (ChatCompletions, {"stop": [1]}, "stop"),
    (AnthropicMessages, {"messages": []}, "there is no message"),
    (AnthropicMessages, {"messages": users([{"type": "image", "source": {}}])}, "'image'"),
    (AnthropicMessages, {"messages": users([{"type": "document", "source": {}}])}, "'document'"),
    (AnthropicMessages, {"messages": [{"role": "tool", "content": ""}]}, "role 'tool'"),
    (AnthropicMessages, {"messages": [USER, {"role": "assistant", "content": "I"}]}, "cannot be continued"),
    (AnthropicMessages, {"tool_choice": {"type": "any"}}, "tool_choice"),
    (AnthropicMessages, {"tool_choice": {"type": "tool", "name": "terminal"}}, "tool_choice"),
    (AnthropicMessages, {"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output formats"),
    (
        AnthropicMessages,
        {"messages": users([{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}])},
        "'image'",
    ),
    (Responses, {"input": None}, "there is no message"),
    (Responses, {"previous_response_id": "resp_1"}, "previous_response_id"),
    (Responses, {"conversation": "conv_1"}, "conversation"),
    (Responses, {"background": True}, "background"),
    (Responses, {"text": {"format": {"type": "json_object"}}}, "JSON mode"),
    (Responses, {"tool_choice": "required"}, "tool_choice"),
    (Responses, {"top_logprobs": 3}, "logprobs"),
    (Responses, {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]}, "logprobs"),
    (Responses, {"input": users([{"type": "input_image", "image_url": ""}])}, "'input_image'"),
    (Responses, {"input": [{"type": "item_reference", "id": "x"}]}, "'item_reference'"),
]


@pytest.mark.parametrize(("kind", "fields", "reason"), REFUSED)
def test_request_is_refused_with_the_reason(kind: type[Dialect], fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(GatewayError, match=reason) as info:
        read(kind, fields)
    assert info.value.status == 400
    assert not info.value.retry


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"a":' + b"9" * 5000 + b"}"])
def test_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(GatewayError, match="no JSON") as info:
        read_json(body)
    assert info.value.status == 400


@pytest.mark.parametrize("part", ["[],", "0,", "{},", '"\\ud83d\\ude00",'])
def test_body_of_too_many_values_is_refused(part: str) -> None:
    with pytest.raises(GatewayError, match="more than 2000000 values"):
        read_json(f'{{"input": [{part * 2_000_001}0]}}'.encode())


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_many_items_in_a_row_become_one_message(role: str) -> None:
    """A join of each with all before it would take minutes, and block the driver."""
    items = [{"role": role, "content": "text "}] * 200_000
    request = read(Responses, {"input": [USER, *items]})
    last = arrange_messages(request.messages)[-1]
    assert (last["role"], last["content"].count("text ")) == (role, 200_000)


def test_chat_request_keeps_what_matters() -> None:
    messages: list[Message] = [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "index": 0}], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "name": "terminal", "content": [{"type": "text", "text": "a"}]},
    ]
    tools = [
        {"type": "function", "function": {"name": "terminal", "parameters": SCHEMA, "strict": True}},
        {"type": "function", "function": {"name": "bare", "description": "Waits"}},
        {"type": "custom", "custom": {"name": "patch"}},
    ]
    fields: dict[str, Any] = {
        "messages": messages, "tools": tools, "max_completion_tokens": 9, "max_tokens": 10, "temperature": 0,
        "stop": "END", "n": 1, "logprobs": False, "response_format": {"type": "text"}, "tool_choice": "none",
        "user": "u", "top_p": 0.5, "stream": True,
        "stream_options": {"include_usage": True}, "parallel_tool_calls": False, "seed": None,
    }  # fmt: skip
    request = read(ChatCompletions, fields, {"x-stainless-retry-count": "2", "idempotency-key": "k"})
    assert request == ChatRequest(
        "policy",
        [
            {"role": "system", "content": "Be brief."},
            USER,
            {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": "c1", "content": "a"},
        ],
        [
            {"type": "function", "function": {"name": "terminal", "parameters": SCHEMA}},
            {
                "type": "function",
                "function": {
                    "name": "bare",
                    "description": "Waits",
                    "parameters": {"type": "object", "properties": {}},
                },
            },
        ],
        9,
        {"temperature": 0, "top_p": 0.5, "stop": ["END"], "tool_choice": "none"},
        stream=True,
        include_usage=True,
        retry_count=2,
        idempotency_key="k",
    )


def test_anthropic_request_keeps_what_matters() -> None:
    """In the form of claude-code: system texts in the middle, thinking, tools of the provider, a search for tools."""
    uses = [{"type": "tool_use", "id": f"c{n}", "name": "terminal", "input": {"command": "ä"}} for n in (1, 2)]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
        {"role": "system", "content": [{"type": "text", "text": "Date"}]},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I"}, *uses],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "one", "is_error": True},
                {
                    "type": "tool_result",
                    "tool_use_id": "c2",
                    "content": [{"type": "tool_reference", "tool_name": "read"}],
                },
                {"type": "text", "text": "Go "},
                {"type": "text", "text": "on"},
            ],
        },
    ]
    fields = {
        "messages": messages, "system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
        "tools": [
            {"name": "terminal", "input_schema": SCHEMA, "defer_loading": True},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        "stop_sequences": ["END"], "top_k": 5, "thinking": {"type": "adaptive"}, "tool_choice": {"type": "auto"},
        "context_management": {}, "output_config": {"effort": "high"}, "metadata": {"user_id": "u"},
        "max_tokens": 128_000,
    }  # fmt: skip
    arguments = '{"command": "ä"}'
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": "terminal", "arguments": arguments}} for n in (1, 2)
    ]
    assert read(AnthropicMessages, fields) == ChatRequest(
        "policy",
        [
            {"role": "system", "content": "Be brief."},
            USER,
            {"role": "system", "content": "Date"},
            {"role": "assistant", "content": "I", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c1", "content": "one"},
            {"role": "tool", "tool_call_id": "c2", "content": "read"},
            {"role": "user", "content": "Go on"},
        ],
        [{"type": "function", "function": {"name": "terminal", "parameters": SCHEMA}}],
        128_000,
        {"top_k": 5, "stop": ["END"]},
    )


def test_responses_request_keeps_what_matters() -> None:
    """In the form of codex: several messages in a row, tools of namespaces and of the provider, reasoning."""
    text = {"type": "input_text", "text": "Hi"}
    items = [
        {"type": "message", "role": "developer", "content": [text]},
        {"type": "message", "role": "user", "content": [text]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "terminal", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "find", "namespace": "mcp__docs__", "arguments": "{"},
        {"type": "function_call_output", "call_id": "c1", "output": [text]},
        {"type": "function_call_output", "call_id": "c2", "output": "none"},
    ]
    tools = [
        {"type": "function", "name": "terminal", "parameters": SCHEMA, "strict": False},
        {
            "type": "namespace",
            "name": "mcp__docs__",
            "tools": [{"type": "function", "name": "find", "parameters": SCHEMA}],
        },
        {"type": "web_search"},
        {"type": "custom", "name": "apply_patch"},
    ]
    fields = {"instructions": "Be brief.", "input": items, "tools": tools, "max_output_tokens": 5, "store": False}
    request = read(Responses, {**fields, "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "high"}})
    assert request.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Hi"},
        USER,
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                CALL,
                {"id": "c2", "type": "function", "function": {"name": "mcp__docs__find", "arguments": "{"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Hi"},
        {"role": "tool", "tool_call_id": "c2", "content": "none"},
    ]
    assert [tool["function"]["name"] for tool in request.tools] == ["terminal", "mcp__docs__find"]
    assert request.max_tokens == 5


def test_call_of_a_tool_in_a_namespace_names_the_namespace() -> None:
    tools = [
        {"type": "namespace", "name": "docs", "tools": [{"type": "function", "name": "find", "parameters": SCHEMA}]}
    ]
    dialect = Responses({**RESPONSES, "tools": tools}, {})
    completion = Completion(None, (ToolCall("c1", "docs__find", "{}"), ToolCall("c2", "terminal", "{}")))
    first, second = dialect.answer_body(answer_of(completion))["output"]
    assert (first["name"], first["namespace"]) == ("find", "docs")
    assert (second["name"], "namespace" in second) == ("terminal", False)
    request = Responses({**RESPONSES, "input": [USER, first, second], "tools": tools}, {}).request
    assert [call["function"]["name"] for call in request.messages[1]["tool_calls"]] == ["docs__find", "terminal"]


ARGUMENTS = ["{", "", "[]", "7", '"text"', '{"a": NaN}', '{"a": 1e999}', "[" * 100_000, '{"a": [1, 2.50, null, "ä"]}']


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_arguments_survive_the_object_form_of_anthropic(arguments: str) -> None:
    """Those that are no object come back as they were; an object comes back equal."""
    completion = Completion("I", (ToolCall("c1", "terminal", arguments),))
    dialect = AnthropicMessages(ANTHROPIC, {})
    content = json.loads(json.dumps(dialect.answer_body(answer_of(completion))["content"]))
    turn = {"role": "assistant", "content": content}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": ""}
    (call,) = read(AnthropicMessages, {"messages": [USER, turn, *users([result])]}).messages[1]["tool_calls"]
    returned = call["function"]["arguments"]
    if returned != arguments:
        assert json.loads(returned) == json.loads(arguments)


def test_halves_of_surrogate_pairs_become_replacement_characters() -> None:
    half = json.loads('"a\\ud800b"')
    for kind, fields in (
        (ChatCompletions, {"messages": users(half)}),
        (AnthropicMessages, {"messages": users([{"type": "text", "text": half}])}),
        (Responses, {"input": half}),
    ):
        assert read(kind, fields).messages == [{"role": "user", "content": "a\ufffdb"}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
WHOLE: dict[type[Dialect], dict[str, Any]] = {
    ChatCompletions: {
        **CHAT,
        "messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                     {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a"}]}],
        "tools": [{"type": "function", "function": {"name": "t", "description": "", "parameters": SCHEMA}}],
        "response_format": {"type": "text"}, "stream_options": {"include_usage": True}, "stop": ["a"], "top_p": 1,
    },
    AnthropicMessages: {
        **ANTHROPIC, "system": [{"type": "text", "text": "a"}], "tool_choice": {"type": "auto"}, "output_config": {},
        "messages": [USER,
                     {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "t", "input": {}}]},
                     *users([{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "a"}]}])],
        "tools": [{"name": "t", "input_schema": SCHEMA}],
    },
    Responses: {
        **RESPONSES, "instructions": "a", "text": {"format": {"type": "text"}},
        "input": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
                  {"type": "function_call", "call_id": "c", "name": "t", "namespace": "n", "arguments": "{}"},
                  {"type": "function_call_output", "call_id": "c", "output": "a"}],
        "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "t", "parameters": {}}]}],
    },
}  # fmt: skip


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of all values in a JSON value."""
    children: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


@pytest.mark.parametrize("kind", WHOLE)
@settings(max_examples=400)
@given(data=st.data())
def test_any_value_at_any_place_is_read_or_refused(kind: type[Dialect], data: st.DataObject) -> None:
    body: Any = json.loads(json.dumps(WHOLE[kind]))
    (*path, last) = data.draw(st.sampled_from([place for place in places(body) if place]))
    holder = body
    for key in path:
        holder = holder[key]
    holder[last] = data.draw(JSON)
    try:
        request = kind(body, {"x-stainless-retry-count": data.draw(st.text(max_size=3))}).request
    except GatewayError as error:
        assert error.status == 400  # noqa: PT017 - a request may also be read
        return
    for message in request.messages:
        assert message["role"] in ("system", "user", "assistant", "tool")
        assert isinstance(message["content"], str)
        for call in message.get("tool_calls", ()):
            assert isinstance(call["function"]["arguments"], str)
    for tool in request.tools:
        assert isinstance(tool["function"]["parameters"], dict)
