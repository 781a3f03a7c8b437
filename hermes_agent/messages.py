"""Data types between a model and the loop: tool calls, completions, token counts."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Literal, NamedTuple

Message = dict[str, Any]
"""One message of a conversation, in the form of chat completion interfaces (`role`, `content`, `tool_calls`,
`tool_call_id`, `reasoning_content`).
"""

FinishReason = Literal["stop", "length", "content_filter"]


class ToolCall(NamedTuple):
    """One call that a model wrote.

    Attributes:
        id: The id that the result refers to.
        name: The name of the tool.
        arguments: The arguments as the model wrote them. They need not be valid JSON.
        error: None for a call that a toolbox can run. Otherwise an explanation for the model why its text is not a
            call; `arguments` then holds that text.
        extra_content: Data that the provider attached to the call and needs back, such as a signature.
    """

    id: str
    name: str
    arguments: str
    error: str | None = None
    extra_content: object = None


@dataclass(frozen=True)
class TokenUsage:
    """Tokens of one completion or, added up, of an episode.

    `requests` counts the completions. `cost` is the provider's charge for them, in its currency (0 if it reports none).
    `reasoning_tokens` are the part of the completion that is thinking, and `cached_tokens` the part of the prompt that
    the server had in its cache (0 if the server reports neither).
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    requests: int = 0
    cost: float = 0.0
    reasoning_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.requests + other.requests,
            self.cost + other.cost,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cached_tokens + other.cached_tokens,
        )


class CompletionUsage(NamedTuple):
    """The usage of one completion of an episode, and the way in which it ended."""

    usage: TokenUsage
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """The token ids of one turn, exactly as the model saw and sampled them.

    Attributes:
        added: The ids of the prompt after the ids of the previous turn (in the first turn: the whole prompt).
        ids: The sampled ids.
        logprobs: The natural logarithms of their probabilities at sampling, one for each id. None if the server
            returned none.
        restarts: Whether the sequence begins anew at this turn, because earlier messages were changed or the prompt was
            rendered elsewhere. `added` is then a whole prompt.
    """

    added: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    restarts: bool = False


FENCED_CALL = "fenced_call"
"""The kind of the problem that an answer ends with a call in a code fence."""
INVENTED_ANSWER = "invented_answer"
"""The kind of the problem that an answer was cut where the model went on in another role, such as a tool's."""


@dataclass(frozen=True)
class AnswerProblem:
    """A fault of an answer outside its calls. An episode records it among its errors.

    Attributes:
        kind: The stable name of the fault.
        message: A description of the fault.
        notice: A user message for the model, after which the episode goes on. None: the model is not prompted again
            because of the fault.
        trainable: Whether the end of the episode is still a measure of the model.
    """

    kind: str
    message: str
    notice: str | None = None
    trainable: bool = True


@dataclass(frozen=True)
class Completion:
    """One answer of a model.

    Attributes:
        content: The visible text. None or "" if there is none.
        tool_calls: The calls in the model's order, broken calls included (`ToolCall.error`).
        reasoning: The model's thinking, if the model separates it.
        finish_reason: "length" if `max_tokens` cut the answer, "content_filter" if the provider withheld it, else
            "stop".
        usage: The tokens of this completion.
        raw: The text before it was parsed, if a parser read it.
        tokens: The token ids, for models that return them.
        problems: Faults of the answer outside its calls.
        provider_fields: Further fields of the message that its provider signs and needs back unchanged
            (`reasoning_details`, `extra_content`).
    """

    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    finish_reason: FinishReason = "stop"
    usage: TokenUsage = TokenUsage(requests=1)
    raw: str | None = None
    tokens: TurnTokens | None = None
    problems: tuple[AnswerProblem, ...] = ()
    provider_fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cut_at_invention(self) -> bool:
        """Whether text was left out because the model went on in another role, such as a tool's."""
        return any(problem.kind == INVENTED_ANSWER for problem in self.problems)


def validate_completion(completion: object) -> Completion:
    """Return the result of a model's `complete` if it is a valid Completion.

    Raises:
        TypeError: If it is not a Completion, or a field has a wrong type.
    """
    if not isinstance(completion, Completion):
        raise TypeError(f"the model's complete returned {type(completion).__name__}, not a Completion")
    for name, kinds in (
        ("content", (str, NoneType)),
        ("tool_calls", (tuple, list)),
        ("usage", (TokenUsage,)),
        ("tokens", (TurnTokens, NoneType)),
        ("problems", (tuple, list)),
        ("provider_fields", (Mapping,)),
    ):
        if not isinstance(value := getattr(completion, name), kinds):
            raise TypeError(f"the {name} of the model's Completion is of type {type(value).__name__}")
    calls: Sequence[object] = completion.tool_calls
    for call in calls:
        if not isinstance(call, ToolCall) or not all(isinstance(part, str) for part in call[:3]):
            raise TypeError(f"a call of the model's Completion is not a ToolCall of texts but {call!r:.100}")
    for problem in completion.problems:
        if not isinstance(problem, AnswerProblem):
            raise TypeError(f"a problem of the model's Completion is not an AnswerProblem but {problem!r:.100}")
    usage = completion.usage
    tokens = (usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens, usage.cached_tokens)
    counts: tuple[object, ...] = (*tokens, usage.cost)
    if not all(isinstance(count, int | float) and math.isfinite(count) for count in counts):
        raise TypeError(f"the usage of the model's Completion has a value that is not a finite number: {usage!r:.100}")
    return completion


def assistant_message(completion: Completion) -> Message:
    """Return the message that keeps a completion in the history, with all its parts."""
    message: Message = {"role": "assistant", "content": completion.content or ""}
    if completion.reasoning:
        message["reasoning_content"] = completion.reasoning
    message |= completion.provider_fields
    if completion.tool_calls:
        message["tool_calls"] = list(map(_call_part, completion.tool_calls))
    return message


def _call_part(call: ToolCall) -> Message:
    part: Message = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return part if call.extra_content is None else {**part, "extra_content": call.extra_content}


def tool_message(call: ToolCall, content: str, images: Sequence[bytes] = ()) -> Message:
    """Return the message that answers a call. With PNG images its content is a list of parts: the text, then each
    image.
    """
    parts = content_of(content, list(map(_image_part, images)))
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": parts}


def content_of(text: str, images: Sequence[Message]) -> str | list[Message]:
    """Return the content of a message: the text, or a list of parts if there are image parts."""
    return [{"type": "text", "text": text}, *images] if images else text


def _image_part(png: bytes) -> Message:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(png).decode()}"}}


def message_text(message: Mapping[str, Any], between: str = "") -> str:
    """Return the text of a message. Text parts are joined by `between`, images are left out."""
    content = message.get("content")
    if isinstance(content, list):
        return between.join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return "" if content is None else str(content)


def image_parts(message: Mapping[str, Any]) -> list[Message]:
    """Return the parts of a message that are images."""
    content = message.get("content")
    parts: list[Message] = content if isinstance(content, list) else []
    return [part for part in parts if part.get("type") == "image_url"]


def calls_of(message: Mapping[str, Any]) -> list[ToolCall]:
    """Return the calls of an assistant message, in order."""
    return [
        ToolCall(str(call["id"]), str(call["function"]["name"]), str(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]


CallState = Literal["not_begun", "begun", "ended"]
"""The progress of a call.

`not_begun`: the toolbox was never called, because the call was malformed or refused, or the episode ended before.
`begun`: the episode ended while the call ran, which may have had effects. `ended`: the call has its result.
"""


class CallAnswer(NamedTuple):
    """The answer to a call.

    Attributes:
        content: The text for the model.
        ok: Whether the tool did its work.
        error_kind: The stable name of the error, if there is one.
        duration_s: The run time of the call.
        state: The progress of the call.
        images: PNG images of the result.
        shows_images: Whether the images go to the model.
    """

    content: str
    ok: bool
    error_kind: str | None
    duration_s: float = 0.0
    state: CallState = "ended"
    images: tuple[bytes, ...] = ()
    shows_images: bool = False
