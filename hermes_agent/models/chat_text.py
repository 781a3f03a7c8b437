"""A conversation with tools as plain text, for endpoints without tools: the Hermes prompt, calls and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from hermes_agent.messages import Message, ToolCall, calls_of, content_of, image_parts
from hermes_agent.models.chat_answer import text_of
from hermes_agent.parsers import Renderer, get_renderer
from hermes_agent.trajectories.sharegpt import sharegpt, system_prompt, tool_call_block


def leading_system(messages: Sequence[Message]) -> int:
    """Return how many system messages a conversation begins with."""
    roles = [message.get("role") for message in messages]
    return next((at for at, role in enumerate(roles) if role != "system"), len(roles))


_EXAMPLE = ToolCall("", "function_name", '{"argument_name": "value"}')


def as_text(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], render: Renderer) -> list[Message]:
    """Return the messages without fields for tools.

    One system message holds the tools and the form of a call, followed by the texts of the leading system messages.
    `render` writes calls into the text of their message, and the results of a turn become one user message of
    `<tool_response>` blocks. Thinking is left out, as chat templates do in earlier turns.
    """
    leading = leading_system(messages) if tools else 0
    system_texts = [text_of(message.get("content")) or "" for message in messages[:leading]]
    example = None if render is get_renderer("hermes") else render([_EXAMPLE])
    tool_prompt = [system_prompt(tools, example)] if tools else []
    prompt: list[Message] = [{"role": "system", "content": "\n\n".join([*tool_prompt, *system_texts])}] if tools else []
    for role, run in groupby(messages[leading:], lambda message: message.get("role")):
        if role == "tool":
            results = list(run)
            images = [part for message in results for part in image_parts(message)]
            prompt.append({"role": "user", "content": content_of(sharegpt(results, ())[-1]["value"], images)})
        elif role == "assistant":
            prompt += [{"role": role, "content": _assistant_text(message, render)} for message in run]
        else:
            prompt += run
    return prompt


def _assistant_text(message: Message, render: Renderer) -> str:
    calls = calls_of(message)
    text = (text_of(message.get("content")) or "").strip()
    return "\n".join(filter(None, (text, render_calls(calls, render) if calls else "")))


def render_calls(calls: Sequence[ToolCall], render: Renderer) -> str:
    """Return the calls in their format. If the format cannot hold one of them, return all as blocks with the model's
    own text.
    """
    try:
        return render(calls)
    except ValueError:
        return "\n".join(map(tool_call_block, calls))
