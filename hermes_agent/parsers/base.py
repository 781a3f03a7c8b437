"""What every parser of tool calls returns, and how ids are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hermes_agent.messages import ToolCall


class Parsed(NamedTuple):
    """A model's text taken apart.

    `content` is the text around the calls, before and after them (None when there is none), `calls` are in the order
    of the text, broken ones included (`ToolCall.error` says for the model what was wrong), `reasoning` is what stood
    between <think> and </think>, `cut` says that the text ended inside a call.
    """

    content: str | None
    calls: list[ToolCall]
    reasoning: str | None = None
    cut: bool = False


Parser = Callable[[str], Parsed]
"""A pure function of the text; it raises nothing."""


def call_id(index: int, text: str) -> str:
    """The id of the call with this index in a text: the same for the same text, so that parsers stay pure."""
    digest = 2166136261
    for byte in text.encode("utf-8", "surrogatepass"):
        digest = (digest ^ byte) * 16777619 & 0xFFFFFFFF
    return f"call_{digest:08x}_{index}"
