"""Reads a chat completion of any endpoint as a Completion."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from hermes_agent.messages import Completion, FinishReason, TokenUsage, ToolCall
from hermes_agent.models.chat_usage import read_usage
from hermes_agent.models.endpoint import BadAnswer
from hermes_agent.parsers import ParsedText, holds_call, read_plain
from hermes_agent.parsers.base import whole_calls
from hermes_agent.parsers.problems import reasoning_problem

_PROVIDER_FIELDS = ("reasoning_details", "extra_content")
"""Fields of OpenRouter and of Gemini's OpenAI interface."""

_EMPTY_THINKING = "<think></think>"
"""Stands for thinking that the endpoint returned separately: a closing tag in the text after it closes nothing."""

_AFTER_INVENTION = (
    "This tool call was not run: in the text before it you wrote a result yourself. Make the call without it "
    "and wait for the result"
)


_FINISHES: Mapping[str, FinishReason] = {
    **dict.fromkeys(("", "stop", "tool_calls", "function_call", "tool_use", "end_turn", "stop_sequence"), "stop"),
    **dict.fromkeys(("eos", "eos_token", "complete", "completed", "end"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "model_length", "max_output_tokens", "token_limit"), "length"),
    **dict.fromkeys(("content_filter", "safety", "sensitive", "recitation", "blocklist"), "content_filter"),
    **dict.fromkeys(("prohibited_content", "refusal"), "content_filter"),
}
"""The words of OpenAI, Anthropic, Gemini, Mistral, Cohere, Together, Z.ai and text-generation-inference."""


def read_answer(
    answer: object, parse: Callable[[str], ParsedText] | None, *, max_tokens: int | None = None
) -> Completion:
    """Return the first choice of an answer as a completion.

    If there are no structured calls, `parse` reads the text. `max_tokens` is the limit of the request: some servers
    report an answer with calls as complete although the limit cut it.

    Raises:
        BadAnswer: If there is no choice with a message, or the answer ended for another reason than its end, the limit
            of tokens or a filter. A stopped engine is such a reason: its partial text is not the model's answer.
    """
    choice = _choice(answer)
    message = choice["message"]
    calls = tuple(_call(call, index) for index, call in enumerate(as_list(message.get("tool_calls"))))
    content = text_of(message.get("content")) or text_of(message.get("refusal"))
    reasoning, finish = _reasoning(message), _finish(choice.get("finish_reason"))
    usage = read_usage(as_mapping(as_mapping(answer).get("usage")))
    if calls and finish == "stop" and max_tokens is not None and usage.completion_tokens >= max_tokens:
        finish = "length"
    if parse is not None and content and not calls:
        completion = parse(_mark_reasoning(reasoning, content)).completion(content, finish, usage)
        completion = replace(completion, reasoning=reasoning or completion.reasoning)
    else:
        completion = _build_completion(content, calls, reasoning, finish, usage)
    fields = {name: message[name] for name in _PROVIDER_FIELDS if message.get(name)}
    return _add_reasoning_problem(replace(completion, provider_fields=fields), parse)


def _build_completion(
    content: str | None, calls: tuple[ToolCall, ...], reasoning: str | None, finish: FinishReason, usage: TokenUsage
) -> Completion:
    """Return the completion of an endpoint that extracted the calls itself.

    Text comes before calls: if it goes on in another role, the calls follow on that.
    """
    if finish == "length":
        calls = whole_calls(calls)
    parsed = read_plain(_mark_reasoning(reasoning, content), ()) if content else None
    if parsed is None or not parsed.problems:
        return Completion(content, calls, reasoning, finish, usage)
    calls = tuple(call if call.error else call._replace(error=_AFTER_INVENTION) for call in calls)
    return Completion(parsed.content, calls, reasoning or parsed.reasoning, finish, usage, problems=parsed.problems)


def _mark_reasoning(reasoning: str | None, content: str) -> str:
    return f"{_EMPTY_THINKING}{content}" if reasoning else content


def _add_reasoning_problem(completion: Completion, parse: Callable[[str], ParsedText] | None) -> Completion:
    """Return the completion, with a problem if all of the answer is thinking that contains a call."""
    empty = completion.finish_reason == "stop" and not completion.tool_calls and not (completion.content or "").strip()
    if completion.problems or not empty or not completion.reasoning or not holds_call(completion.reasoning, parse):
        return completion
    return replace(completion, problems=(reasoning_problem(),))


def _choice(answer: object) -> Mapping[str, Any]:
    choices = as_list(as_mapping(answer).get("choices"))
    choice = as_mapping(choices[0] if choices else None)
    # Routers report an error of the provider behind them with status 200.
    error = choice.get("error") or as_mapping(answer).get("error")
    if error or choice.get("finish_reason") == "error":
        raise BadAnswer(f"it is an error: {as_mapping(error).get('message') or error}")
    if not isinstance(choice.get("message"), Mapping):
        raise BadAnswer("it has no choice" if not choices else "its choice has no message")
    return choice


def _finish(reason: object) -> FinishReason:
    finish = "stop" if reason is None else _FINISHES.get(reason.lower()) if isinstance(reason, str) else None
    if finish is None:
        raise BadAnswer(f"it ended with {reason!r:.100}")
    return finish


def _call(call: object, index: int) -> ToolCall:
    function = as_mapping(as_mapping(call).get("function"))
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    call_id = as_mapping(call).get("id")
    tool_call = ToolCall(
        call_id if isinstance(call_id, str) and call_id else f"call_{index}",
        name if isinstance(name, str) else "",
        well_formed(arguments),
        extra_content=as_mapping(call).get("extra_content") or None,
    )
    return (
        tool_call if tool_call.name else tool_call._replace(error="This tool call has no name. Name one of the tools")
    )


def _reasoning(message: Mapping[str, Any]) -> str | None:
    """Return the first of `reasoning_content`, `reasoning` and the texts of `reasoning_details`: endpoints differ."""
    for name in ("reasoning_content", "reasoning"):
        text = message.get(name)
        if isinstance(text, str) and text.strip():
            return well_formed(text)
    return _join_texts((as_mapping(detail) for detail in as_list(message.get("reasoning_details"))), "\n")


def text_of(content: object) -> str | None:
    """Return a text, or the text of a list of parts."""
    if isinstance(content, str):
        return well_formed(content)
    return _join_texts(part for part in map(as_mapping, as_list(content)) if part.get("type") in ("text", None))


def _join_texts(parts: Iterable[Mapping[str, Any]], between: str = "") -> str | None:
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str) and part["text"]]
    return well_formed(between.join(texts)) or None


def well_formed(text: str) -> str:
    """Return the text with a replacement character for each half of a surrogate pair, which no file or request can
    hold.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []
