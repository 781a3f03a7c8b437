"""Anthropic's messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hermes_agent.gateway.dialect import (
    Dialect,
    as_list,
    encode,
    function_tool,
    read_count,
    read_part,
    read_text,
    refusal,
    sse,
    tool_call,
    tool_result,
)
from hermes_agent.gateway.openai import read_tool_choice
from hermes_agent.gateway.request import Answer, GatewayError
from hermes_agent.messages import Completion, Message, TokenUsage
from hermes_agent.models.chat_answer import as_mapping

_write_arguments = json.JSONEncoder(ensure_ascii=False).encode
_RENAMED = {"stop_sequences": "stop"}
_THINKING = ("thinking", "redacted_thinking")
_UNPARSED = "unparsed_arguments"
"""The one input of a call whose arguments are no JSON object: this interface has no place for another text."""
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class AnthropicMessages(Dialect):
    """A request to `/v1/messages`."""

    KEEP_ALIVE = sse({"type": "ping"}, "ping")

    def _read_messages(self, body: Mapping[str, Any]) -> list[Message]:
        messages = [message for part in as_list(body, "messages") for message in _read_message(as_mapping(part))]
        if messages and messages[-1]["role"] == "assistant":
            raise refusal("the last message is the assistant's: an answer cannot be continued")
        system = read_text(body.get("system"))
        return [{"role": "system", "content": system}, *messages] if system else messages

    def _read_tools(self, tools: list[Any]) -> list[dict[str, Any]]:
        functions = (as_mapping(tool) for tool in tools if isinstance(as_mapping(tool).get("input_schema"), dict))
        return [function_tool(f.get("name"), f.get("description"), f["input_schema"]) for f in functions]

    def _read_max_tokens(self, body: Mapping[str, Any]) -> int | None:
        return read_count(body, "max_tokens")

    def _read_sampling(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if body.get("output_format") or as_mapping(body.get("output_config")).get("format"):
            raise refusal("output formats are not available: request text")
        choice = read_tool_choice(as_mapping(body.get("tool_choice")).get("type"))
        named = {_RENAMED.get(name, name): value for name, value in body.items()}
        return super()._read_sampling(named) | choice

    def answer_body(self, answer: Answer) -> dict[str, Any]:
        """Return the body of the response."""
        completion = answer.completion
        return self._message(answer) | {
            "content": list(_blocks(completion)),
            "stop_reason": _stop_reason(completion),
            "usage": _usage(completion.usage),
        }

    def answer_events(self, answer: Answer) -> bytes:
        """Return all events of the response."""
        completion, usage = answer.completion, _usage(answer.completion.usage)
        start = self._message(answer) | {"usage": {**usage, "output_tokens": 0}}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
        for index, block in enumerate(_blocks(completion)):
            if block["type"] == "text":
                delta, empty = {"type": "text_delta", "text": block["text"]}, {**block, "text": ""}
            else:
                text = encode(block["input"]).decode()
                delta, empty = {"type": "input_json_delta", "partial_json": text}, {**block, "input": {}}
            events += (
                {"type": "content_block_start", "index": index, "content_block": empty},
                {"type": "content_block_delta", "index": index, "delta": delta},
                {"type": "content_block_stop", "index": index},
            )
        end = {"stop_reason": _stop_reason(completion), "stop_sequence": None}
        events += {"type": "message_delta", "delta": end, "usage": usage}, {"type": "message_stop"}
        return b"".join(sse(event, event["type"]) for event in events)

    def _message(self, answer: Answer) -> dict[str, Any]:
        return {
            "id": f"msg_{answer.id}",
            "type": "message",
            "role": "assistant",
            "model": self.request.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    @classmethod
    def error_body(cls, error: GatewayError) -> dict[str, Any]:
        """Return an error in the form of this interface."""
        message = error.message
        if error.code == "context_length_exceeded":  # the words by which clients know that they have to compact
            message = f"prompt is too long: {message}"
        return {"type": "error", "error": {"type": _ERROR_TYPES.get(error.status, "api_error"), "message": message}}

    def error_events(self, error: GatewayError) -> bytes:
        """Return the events of an error."""
        return sse(self.error_body(error), "error")


def _read_message(message: Mapping[str, Any]) -> Iterator[Message]:
    """Yield the messages of one message: each result of a tool becomes a message of its own."""
    role, content = message.get("role"), message.get("content")
    if role == "system":
        yield {"role": "system", "content": read_text(content)}
    elif role == "assistant":
        yield _read_answer(content)
    elif role != "user":
        raise refusal(f"a message has the role {role!r:.40}")
    elif not isinstance(content, list):
        yield {"role": "user", "content": read_text(content)}
    else:
        yield from _read_user_blocks([as_mapping(block) for block in content])


def _read_user_blocks(blocks: list[Mapping[str, Any]]) -> Iterator[Message]:
    texts: list[str] = []
    for block in blocks:
        if block.get("type") != "tool_result":
            texts.append(read_part(block))
            continue
        if texts:
            yield {"role": "user", "content": "".join(texts)}
            texts = []
        yield tool_result(block.get("tool_use_id"), _read_result(block.get("content")))
    if texts or not blocks:
        yield {"role": "user", "content": "".join(texts)}


def _read_result(content: object) -> str:
    if not isinstance(content, list):
        return read_text(content)
    parts = map(as_mapping, content)
    # A search for tools answers with names of tools, which are among the tools of the request.
    return "".join(str(p.get("tool_name")) if p.get("type") == "tool_reference" else read_part(p) for p in parts)


def _read_answer(content: object) -> Message:
    blocks = [as_mapping(block) for block in content] if isinstance(content, list) else []
    uses = [block for block in blocks if block.get("type") == "tool_use"]
    message: Message = {"role": "assistant", "content": read_text(content, ("tool_use", *_THINKING))}
    if uses:
        message["tool_calls"] = [
            tool_call(use.get("id"), use.get("name"), _read_input(as_mapping(use.get("input")))) for use in uses
        ]
    return message


def _read_input(values: Mapping[str, Any]) -> str:
    if values.keys() == {_UNPARSED} and isinstance(text := values[_UNPARSED], str):
        return text
    try:
        return _write_arguments(values)
    except RecursionError as error:
        raise refusal("the input of a tool call is nested too deep") from error


def _write_input(arguments: str) -> dict[str, Any]:
    try:
        values = json.loads(arguments)
        encode(values)  # refuses numbers that JSON lacks
    except (ValueError, RecursionError):
        values = None
    return values if isinstance(values, dict) else {_UNPARSED: arguments}


def _blocks(completion: Completion) -> Iterator[dict[str, Any]]:
    """Yield the blocks of an answer. An answer without text and calls has one empty text, which clients expect."""
    if completion.content or not completion.tool_calls:
        yield {"type": "text", "text": completion.content or ""}
    for call in completion.tool_calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": _write_input(call.arguments)}


def _stop_reason(completion: Completion) -> str:
    if completion.finish_reason == "stop":
        return "tool_use" if completion.tool_calls else "end_turn"
    return "max_tokens" if completion.finish_reason == "length" else "refusal"


def _usage(usage: TokenUsage) -> dict[str, Any]:
    return {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens),
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }
