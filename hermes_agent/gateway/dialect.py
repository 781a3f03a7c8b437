"""The interface of a dialect, and readers of JSON values that the dialects share.

The readers are lenient: they ignore fields that they do not know, and refuse only what would change the answer.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from hermes_agent.gateway.request import Answer, ChatRequest, GatewayError
from hermes_agent.messages import Message
from hermes_agent.models.chat_answer import as_mapping, well_formed

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "stop", *_PENALTIES)
_INTEGERS = ("top_k", "seed")
_NUMBER_LIMIT = 2**63
_PARTS = (b",", b"[", b"{", b"\\ud", b"\\uD")
_MAX_PARTS = 2_000_000
"""The most values and surrogates in a body, counted by their signs. 64 MiB of `[],` would block the event loop for
seconds and take 1 GB of memory; a text with that many commas exceeds every context.
"""
_NO_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}


class Dialect(ABC):
    """One request in the form of one interface, and the answer to it.

    Args:
        body: The body of the request.
        headers: The headers of the request, by lowercase names.

    Raises:
        GatewayError: If the request cannot be answered (400), with the reason.
    """

    KEEP_ALIVE: ClassVar[bytes] = b": keep-alive\n\n"
    """The bytes that a stream of events sends while the answer is sampled."""

    def __init__(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        model = body.get("model")
        if not isinstance(model, str):
            raise refusal("model is missing")
        messages = self._read_messages(body)
        if not any(message["role"] != "system" for message in messages):
            raise refusal("there is no message")
        tools = self._read_tools(as_list(body, "tools"))
        retry_count = headers.get("x-stainless-retry-count", "")
        self.request = ChatRequest(
            well_formed(model),
            messages,
            tools,
            self._read_max_tokens(body),
            self._read_sampling(body),
            stream=body.get("stream") is True,
            include_usage=as_mapping(body.get("stream_options")).get("include_usage") is True,
            retry_count=int(retry_count[:9]) if retry_count.isdecimal() else 0,
            idempotency_key=headers.get("idempotency-key"),
        )

    @abstractmethod
    def _read_messages(self, body: Mapping[str, Any]) -> list[Message]:
        """Return the conversation in the form of chat completions. The content of each message is a text."""

    @abstractmethod
    def _read_tools(self, tools: list[Any]) -> list[dict[str, Any]]:
        """Return the schemas of functions. Tools that the provider itself would run are left out."""

    @abstractmethod
    def _read_max_tokens(self, body: Mapping[str, Any]) -> int | None:
        """Return the most tokens of the answer, None for no limit."""

    def _read_sampling(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sampling parameters by the names of chat completions."""
        return {name: read_parameter(name, body[name]) for name in _SAMPLING if body.get(name) is not None}

    @abstractmethod
    def answer_body(self, answer: Answer) -> dict[str, Any]:
        """Return the body of the response."""

    @abstractmethod
    def answer_events(self, answer: Answer) -> bytes:
        """Return all events of the response as a stream."""

    @classmethod
    @abstractmethod
    def error_body(cls, error: GatewayError) -> dict[str, Any]:
        """Return the body of the response to a request without an answer."""

    @abstractmethod
    def error_events(self, error: GatewayError) -> bytes:
        """Return the events that end a stream without an answer."""


def refusal(reason: str) -> GatewayError:
    """Return the error of a request that cannot be answered as it is."""
    return GatewayError(400, reason, "unsupported_request")


def encode(value: object) -> bytes:
    """Return a value as JSON."""
    return _encode(value).encode()


def sse(data: object, event: str = "") -> bytes:
    """Return one server-sent event with JSON data."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {_encode(data)}\n\n".encode()


def read_json(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object of a body, with well-formed texts. Raises GatewayError (400) if it is none, or large."""
    if sum(map(body.count, _PARTS)) > _MAX_PARTS:
        raise refusal(f"the body has more than {_MAX_PARTS} values")
    try:
        value = _decode(body.decode(json.detect_encoding(body), "surrogatepass"))
        if b"\\ud" in body or b"\\uD" in body:  # half of a surrogate pair, or a pair
            value = json.loads(well_formed(json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError) as error:
        reason = type(error).__name__ if isinstance(error, RecursionError | UnicodeError) else str(error)
        raise refusal(f"the body is no JSON: {reason}") from error
    if not isinstance(value, dict):
        raise refusal("the body is no JSON object")
    return value


def _read_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number")
    return number


# Made once: json.loads makes one for each call.
_decode = json.JSONDecoder(parse_float=_read_number, parse_constant=_read_number).decode


def read_parameter(name: str, value: object) -> object:
    """Return a sampling parameter. Raises GatewayError (400) if it has a wrong type."""
    if name == "stop":
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise refusal("stop is no text and no list of texts")
        return [well_formed(text) for text in texts if text]
    kinds = int if name in _INTEGERS else int | float
    if not isinstance(value, kinds) or isinstance(value, bool) or not abs(value) < _NUMBER_LIMIT:
        raise refusal(f"{name} is no {'integer' if name in _INTEGERS else 'number'} below 2**63")
    return value


def read_count(body: Mapping[str, Any], name: str) -> int | None:
    """Return a positive integer field, None if it is missing. Raises GatewayError (400) if it is something else."""
    value = body.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _NUMBER_LIMIT):
        raise refusal(f"{name} is no positive integer below 2**63")
    return value


def read_text(content: object, dropped: tuple[str, ...] = ()) -> str:
    """Return the text of a message: a text, or the joined texts of a list of parts. Parts of `dropped` types are left
    out.

    Raises:
        GatewayError: If there is a part that is no text, such as an image (400).
    """
    if content is None or isinstance(content, str):
        return well_formed(content or "")
    if not isinstance(content, list):
        raise refusal("the content of a message is no text and no list of parts")
    return "".join(part if isinstance(part, str) else read_part(part, dropped) for part in content)


def read_part(part: object, dropped: tuple[str, ...] = ()) -> str:
    """Return the text of one part of a message, as `read_text` does."""
    part = as_mapping(part)
    kind, text = part.get("type", "text"), part.get("text")
    if kind in dropped:
        return ""
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        text = part["refusal"]
    if kind not in ("text", "input_text", "output_text", "refusal") or not isinstance(text, str):
        raise refusal(f"parts of type {kind!r:.40} cannot be read: the model reads text only")
    return well_formed(text)


def tool_call(call_id: object, name: object, arguments: str) -> Message:
    """Return one call of an assistant message. Raises GatewayError (400) if the id or the name is no text."""
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise refusal("a tool call has no id or no name")
    function = {"name": well_formed(name), "arguments": well_formed(arguments)}
    return {"id": well_formed(call_id), "type": "function", "function": function}


def tool_result(call_id: object, content: str) -> Message:
    """Return the message with the result of a call. Raises GatewayError (400) if the id is no text."""
    if not isinstance(call_id, str):
        raise refusal("a tool result names no call")
    return {"role": "tool", "tool_call_id": well_formed(call_id), "content": content}


def function_tool(name: object, description: object, schema: object) -> dict[str, Any]:
    """Return a tool in the form of chat completions. Raises GatewayError (400) if it has no name."""
    if not isinstance(name, str) or not name:
        raise refusal("a tool has no name")
    function: dict[str, Any] = {"name": name}
    if isinstance(description, str):
        function["description"] = description
    function["parameters"] = schema if isinstance(schema, dict) else dict(_NO_SCHEMA)
    return {"type": "function", "function": function}


def as_list(body: Mapping[str, Any], name: str) -> list[Any]:
    """Return a field that is a list, an empty one if it is missing. Raises GatewayError (400) if it is none."""
    value = body.get(name)
    if value is not None and not isinstance(value, list):
        raise refusal(f"{name} is no list")
    return value or []
