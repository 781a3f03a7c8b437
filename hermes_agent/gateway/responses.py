"""OpenAI's responses."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
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
from hermes_agent.gateway.openai import error_body, read_tool_choice, refuse_json_mode
from hermes_agent.gateway.request import Answer, GatewayError
from hermes_agent.messages import Message, TokenUsage, ToolCall
from hermes_agent.models.chat_answer import as_mapping

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_STORED = ("previous_response_id", "conversation", "prompt", "background")
_LOGPROBS = "message.output_text.logprobs"
_DROPPED_ITEMS = ("reasoning", "web_search_call")


class Responses(Dialect):
    """A request to `/v1/responses`.

    The tools of a namespace become plain tools, whose names begin with the namespace's. Their calls name the namespace
    again.
    """

    def __init__(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        self._namespaces: dict[str, tuple[str, str]] = {}
        super().__init__(body, headers)

    def _read_messages(self, body: Mapping[str, Any]) -> list[Message]:
        for name in _STORED:
            if body.get(name):
                raise refusal(f"{name} is not available: no response is stored, so that a request holds all items")
        messages: list[Message] = []
        if instructions := read_text(body.get("instructions")):
            messages.append({"role": "system", "content": instructions})
        if isinstance(text := body.get("input"), str):
            return [*messages, {"role": "user", "content": read_text(text)}]
        for item in map(as_mapping, as_list(body, "input")):
            _append_item(messages, item)
        for message in messages:
            if message["role"] == "assistant":
                message["content"] = "".join(message["content"])
        return messages

    def _read_tools(self, tools: list[Any]) -> list[dict[str, Any]]:
        functions: list[dict[str, Any]] = []
        for tool in map(as_mapping, tools):
            if tool.get("type") == "namespace" and isinstance(namespace := tool.get("name"), str):
                members = [as_mapping(member) for member in as_list(tool, "tools")]
                functions += self._namespace_tools(namespace, members)
            elif tool.get("type") == "function":
                functions.append(function_tool(tool.get("name"), tool.get("description"), tool.get("parameters")))
        return functions

    def _namespace_tools(self, namespace: str, members: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        for member in members:
            if member.get("type") == "function" and isinstance(name := member.get("name"), str):
                full = _full_name(namespace, name)
                self._namespaces[full] = namespace, name
                yield function_tool(full, member.get("description"), member.get("parameters"))

    def _read_max_tokens(self, body: Mapping[str, Any]) -> int | None:
        return read_count(body, "max_output_tokens")

    def _read_sampling(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if body.get("top_logprobs") or _LOGPROBS in as_list(body, "include"):
            raise refusal("logprobs are not returned: leave them out")
        refuse_json_mode(as_mapping(body.get("text")).get("format"))
        return super()._read_sampling(body) | read_tool_choice(body.get("tool_choice"))

    def answer_body(self, answer: Answer) -> dict[str, Any]:
        """Return the body of the response."""
        finish, usage = answer.completion.finish_reason, answer.completion.usage
        reason = "content_filter" if finish == "content_filter" else "max_output_tokens"
        return self._response(answer.id, "completed" if finish == "stop" else "incomplete") | {
            "incomplete_details": None if finish == "stop" else {"reason": reason},
            "output": list(self._items(answer)),
            "usage": _usage(usage),
        }

    def answer_events(self, answer: Answer) -> bytes:
        """Return all events of the response."""
        begun, body = self._response(answer.id, "in_progress"), self.answer_body(answer)
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        for index, item in enumerate(body["output"]):
            place = {"output_index": index, "item_id": item["id"]}
            steps = _message_steps(item) if item["type"] == "message" else _call_steps(item)
            events += [
                {**event, **place} if "item" not in event else {**event, "output_index": index} for event in steps
            ]
        events.append({"type": f"response.{body['status']}", "response": body})
        return _number_events(events)

    def _items(self, answer: Answer) -> Iterator[dict[str, Any]]:
        completion = answer.completion
        if completion.content or not completion.tool_calls:
            part = {"type": "output_text", "text": completion.content or "", "annotations": [], "logprobs": []}
            item = {"type": "message", "id": f"msg_{answer.id}", "role": "assistant", "status": "completed"}
            yield {**item, "content": [part]}
        for index, call in enumerate(completion.tool_calls):
            yield self._call_item(f"fc_{answer.id}_{index}", call)

    def _call_item(self, item_id: str, call: ToolCall) -> dict[str, Any]:
        item = {"type": "function_call", "id": item_id, "call_id": call.id, "name": call.name, "status": "completed"}
        if call.name in self._namespaces:
            item["namespace"], item["name"] = self._namespaces[call.name]
        return {**item, "arguments": call.arguments}

    def _response(self, answer_id: str, status: str) -> dict[str, Any]:
        return {
            "id": f"resp_{answer_id}",
            "object": "response",
            "created_at": int(time.time()),
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.request.model,
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": self.request.sampling.get("tool_choice", "auto"),
            "tools": [],
            "usage": None,
        }

    @classmethod
    def error_body(cls, error: GatewayError) -> dict[str, Any]:
        """Return an error in the form of this interface."""
        return error_body(error)

    def error_events(self, error: GatewayError) -> bytes:
        """Return the events of an error."""
        failed = self._response("failed", "failed")
        failed["error"] = {"code": error.code or "server_error", "message": error.message}
        return _number_events([{"type": "response.failed", "response": failed}])


def _append_item(messages: list[Message], item: Mapping[str, Any]) -> None:
    """Add one item of a request. Texts of the assistant and the calls after them are one message, whose content is the
    list of the texts.
    """
    kind = item.get("type", "message")
    if kind in _DROPPED_ITEMS:
        return
    if kind == "function_call_output":
        messages.append(tool_result(item.get("call_id"), read_text(item.get("output"))))
    elif kind == "function_call":
        _answer_of(messages).setdefault("tool_calls", []).append(_read_call(item))
    elif kind != "message":
        raise refusal(f"items of type {kind!r:.40} cannot be read")
    elif not isinstance(role := item.get("role"), str) or role not in _ROLES:
        raise refusal(f"a message has the role {role!r:.40}")
    elif role == "assistant":
        _answer_of(messages)["content"].append(read_text(item.get("content")))
    else:
        messages.append({"role": _ROLES[role], "content": read_text(item.get("content"))})


def _answer_of(messages: list[Message]) -> Message:
    """Return the assistant's message at the end, which is added if there is none."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": []})
    return messages[-1]


def _read_call(item: Mapping[str, Any]) -> Message:
    name, namespace, arguments = item.get("name"), item.get("namespace"), item.get("arguments")
    if not isinstance(arguments, str):
        raise refusal("the arguments of a function call are no text")
    if isinstance(namespace, str) and isinstance(name, str):
        name = _full_name(namespace, name)
    return tool_call(item.get("call_id"), name, arguments)


def _full_name(namespace: str, name: str) -> str:
    return f"{namespace}{'' if namespace.endswith('__') else '__'}{name}"


def _message_steps(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    (part,) = item["content"]
    yield _step("output_item.added", item={**item, "status": "in_progress", "content": []})
    yield _step("content_part.added", content_index=0, part={**part, "text": ""})
    yield _step("output_text.delta", content_index=0, delta=part["text"], logprobs=[])
    yield _step("output_text.done", content_index=0, text=part["text"], logprobs=[])
    yield _step("content_part.done", content_index=0, part=part)
    yield _step("output_item.done", item=item)


def _call_steps(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield _step("output_item.added", item={**item, "status": "in_progress", "arguments": ""})
    yield _step("function_call_arguments.delta", delta=item["arguments"])
    yield _step("function_call_arguments.done", arguments=item["arguments"], name=item["name"])
    yield _step("output_item.done", item=item)


def _step(kind: str, **fields: object) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


def _number_events(events: list[dict[str, Any]]) -> bytes:
    return b"".join(sse({**event, "sequence_number": number}, event["type"]) for number, event in enumerate(events))


def _usage(usage: TokenUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
