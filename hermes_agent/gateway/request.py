"""A model call of a harness in a form that all dialects share: the request, its answer, its error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hermes_agent.gateway.tree import Node
from hermes_agent.messages import Completion, Message


@dataclass(frozen=True)
class ChatRequest:
    """A request for one answer.

    Attributes:
        model: The name of the model that the request asks for.
        messages: The whole conversation (`role`, `content`, `tool_calls`, `tool_call_id`). They are never changed.
        tools: Function schemas in OpenAI form.
        max_tokens: The most ids of the answer. None: no limit of the request.
        sampling: Further parameters, by the names of chat completion interfaces (`temperature`, `top_p`, `stop`, …).
        stream: Whether the answer is sent as server-sent events.
        include_usage: Whether a stream ends with a chunk of the usage.
        retry_count: How often the client has sent the request before (`x-stainless-retry-count`).
        idempotency_key: The `Idempotency-Key`. Requests with equal keys get one answer.
    """

    model: str
    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    max_tokens: int | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    stream: bool = False
    include_usage: bool = False
    retry_count: int = 0
    idempotency_key: str | None = None


class GatewayError(Exception):
    """Raised when a request gets no answer.

    Args:
        status: The HTTP status.
        message: The reason, for the client. It holds no URL and no key of the driver.
        code: A stable name of the reason, such as `context_length_exceeded`.
        kind: The class of the error, as OpenAI's `type`.
        retry: Whether the client may send the request again.
    """

    def __init__(
        self, status: int, message: str, code: str = "", *, kind: str = "invalid_request_error", retry: bool = False
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.kind, self.retry = status, message, code, kind, retry


@dataclass(frozen=True)
class Answer:
    """The answer to a request.

    Attributes:
        id: A name of the answer, of lowercase letters and digits. A retry gets the same one.
        node: Its place in the tree of the gateway.
        completion: The model's answer.
    """

    id: str
    node: Node
    completion: Completion
