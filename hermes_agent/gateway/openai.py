"""OpenAI's chat completions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from hermes_agent.gateway.dialect import (
    Dialect,
    as_list,
    function_tool,
    read_count,
    read_text,
    refusal,
    sse,
    tool_call,
    tool_result,
)
from hermes_agent.gateway.request import Answer, GatewayError
from hermes_agent.messages import Completion, Message, TokenUsage, ToolCall
from hermes_agent.models.chat_answer import as_mapping, well_formed

_ROLES = {"system": "system", "developer": "system", "user": "user"}


class ChatCompletions(Dialect):
    """A request to `/v1/chat/completions`."""

    def _read_messages(self, body: Mapping[str, Any]) -> list[Message]:
        return [_read_message(as_mapping(message)) for message in as_list(body, "messages")]

    def _read_tools(self, tools: list[Any]) -> list[dict[str, Any]]:
        named = [as_mapping(tool) for tool in tools]
        functions = [as_mapping(tool.get("function")) for tool in named if tool.get("type", "function") == "function"]
        return [function_tool(f.get("name"), f.get("description"), f.get("parameters")) for f in functions]

    def _read_max_tokens(self, body: Mapping[str, Any]) -> int | None:
        return read_count(body, "max_completion_tokens") or read_count(body, "max_tokens")

    def _read_sampling(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if body.get("n") not in (None, 1):
            raise refusal("n must be 1: a request gets one answer")
        if body.get("logprobs"):
            raise refusal("logprobs are not returned: leave them out")
        refuse_json_mode(body.get("response_format"))
        return super()._read_sampling(body) | read_tool_choice(body.get("tool_choice"))

    def answer_body(self, answer: Answer) -> dict[str, Any]:
        """Return the body of the response."""
        completion = answer.completion
        message = {"role": "assistant", **_delta(completion)}
        choice = {"index": 0, "message": message, "finish_reason": _finish_reason(completion), "logprobs": None}
        return {**self._head(answer, "chat.completion"), "choices": [choice], "usage": _usage(completion.usage)}

    def answer_events(self, answer: Answer) -> bytes:
        """Return all events of the response."""
        head, completion = self._head(answer, "chat.completion.chunk"), answer.completion
        delta = {"role": "assistant", **_delta(completion)}
        for index, call in enumerate(delta.get("tool_calls", ())):
            call["index"] = index
        chunks: list[tuple[list[dict[str, Any]], object]] = [
            ([{"index": 0, "delta": delta, "finish_reason": None}], None),
            ([{"index": 0, "delta": {}, "finish_reason": _finish_reason(completion)}], None),
        ]
        if self.request.include_usage:
            chunks.append(([], _usage(completion.usage)))
        events = (sse({**head, "choices": choices, "usage": usage}) for choices, usage in chunks)
        return b"".join(events) + b"data: [DONE]\n\n"

    def _head(self, answer: Answer, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{answer.id}",
            "object": kind,
            "created": int(time.time()),
            "model": self.request.model,
        }

    @classmethod
    def error_body(cls, error: GatewayError) -> dict[str, Any]:
        """Return an error in the form of this interface."""
        return error_body(error)

    def error_events(self, error: GatewayError) -> bytes:
        """Return the events of an error."""
        return sse(error_body(error))


def error_body(error: GatewayError) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    return {"error": {"message": error.message, "type": error.kind, "code": error.code or None, "param": None}}


def refuse_json_mode(form: object) -> None:
    """Raise GatewayError (400) if a field requests an answer in a form."""
    if as_mapping(form).get("type", "text") != "text":
        raise refusal("JSON mode and response formats are not available: request text")


def read_tool_choice(choice: object) -> dict[str, Any]:
    """Return the parameter of a `tool_choice`. Raises GatewayError (400) if it forces a call."""
    if choice in (None, "auto"):
        return {}
    if choice == "none":
        return {"tool_choice": "none"}
    raise refusal("tool_choice must be auto or none: a call cannot be forced")


def _read_message(message: Mapping[str, Any]) -> Message:
    role, content = message.get("role"), read_text(message.get("content"))
    if role == "tool":
        return tool_result(message.get("tool_call_id"), content)
    if role != "assistant":
        if not isinstance(role, str) or role not in _ROLES:
            raise refusal(f"a message has the role {role!r:.40}")
        return {"role": _ROLES[role], "content": content}
    answer: Message = {"role": "assistant", "content": content}
    if isinstance(reasoning := message.get("reasoning_content"), str) and reasoning:
        answer["reasoning_content"] = well_formed(reasoning)
    if calls := [_read_call(as_mapping(call)) for call in as_list(message, "tool_calls")]:
        answer["tool_calls"] = calls
    return answer


def _read_call(call: Mapping[str, Any]) -> Message:
    function = as_mapping(call.get("function"))
    if not isinstance(arguments := function.get("arguments"), str):
        raise refusal("the arguments of a tool call are no text")
    return tool_call(call.get("id"), function.get("name"), arguments)


def _delta(completion: Completion) -> dict[str, Any]:
    delta: dict[str, Any] = {"content": completion.content or (None if completion.tool_calls else "")}
    if completion.reasoning:
        delta["reasoning_content"] = completion.reasoning
    if completion.tool_calls:
        delta["tool_calls"] = list(map(_call_part, completion.tool_calls))
    return delta


def _call_part(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish_reason(completion: Completion) -> str:
    return "tool_calls" if completion.tool_calls and completion.finish_reason == "stop" else completion.finish_reason


def _usage(usage: TokenUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
