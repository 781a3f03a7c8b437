"""The result of every parser of tool calls, the type of a format, and ids for calls."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from hermes_agent.messages import (
    INVENTED_ANSWER,
    AnswerProblem,
    Completion,
    FinishReason,
    TokenUsage,
    ToolCall,
    TurnTokens,
)
from hermes_agent.parsers.json_text import JsonValue, decode_whole

Tools = Sequence[Mapping[str, Any]]
"""Function schemas in OpenAI form. A parser takes the types of arguments from them."""

_ID_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 9
_EMPTY_AT_END = re.compile(r"\{\s*+\}\s*+\Z")
_GOOD_ID = re.compile(r"[0-9A-Za-z]{9}")


class BrokenCall(NamedTuple):
    """A block that was meant as a call and is not a valid one.

    Attributes:
        place: Its index among all calls of the text, from 0.
        text: The text as the model wrote it.
        error: The explanation for the model.
        id: The id for its answer.
    """

    place: int
    text: str
    error: str
    id: str = ""


class ParsedText(NamedTuple):
    """The parts of a model's text.

    Attributes:
        content: The text around the calls, before and after them. None if there is none.
        reasoning: The model's thinking.
        calls: The well-formed calls, in the order of the text.
        errors: The broken calls.
        cut: Whether the text ended inside of a call (which is among `errors`).
        problems: Faults of the text outside its calls.
    """

    content: str | None
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    errors: tuple[BrokenCall, ...] = ()
    cut: bool = False
    problems: tuple[AnswerProblem, ...] = ()

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """All calls in the order of the text, the broken ones with their `error`, as in a `Completion`."""
        whole = iter(self.calls)
        merged: list[ToolCall] = []
        for broken in self.errors:
            merged += islice(whole, broken.place - len(merged))
            merged.append(ToolCall(broken.id, "", broken.text, broken.error))
        return (*merged, *whole)

    def completion(
        self,
        raw: str,
        finish: FinishReason = "stop",
        usage: TokenUsage = TokenUsage(requests=1),  # noqa: B008 - it is frozen
        tokens: TurnTokens | None = None,
    ) -> Completion:
        """Return the completion whose text `raw` was parsed.

        If the token limit cut the text, a last call that ends the text with `{}` counts as cut, and unclosed thinking
        is no problem.
        """
        calls, problems = self.tool_calls, self.problems
        if finish == "length":
            calls = whole_calls(calls) if _EMPTY_AT_END.search(raw) else calls
            problems = tuple(problem for problem in problems if problem.kind == INVENTED_ANSWER)
        return Completion(self.content, calls, self.reasoning, finish, usage, raw, tokens, problems)


def whole_calls(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """Return the calls of an answer that the token limit cut.

    Only the last call can be cut: it is whole if its arguments are a non-empty object.
    """
    if not calls or calls[-1].error is not None or is_whole(calls[-1].arguments):
        return calls
    error = "This tool call was cut off before its end by the limit of tokens, and was not run. Send it again"
    return (*calls[:-1], calls[-1]._replace(error=error))


def is_whole(arguments: str) -> bool:
    """Return whether arguments are certainly complete: a non-empty object, perhaps encoded twice."""
    decoded = decode_whole(arguments)
    value = decoded.value if isinstance(decoded, JsonValue) else None
    return is_whole(value) if isinstance(value, str) else isinstance(value, dict) and bool(value)


Parser = Callable[[str, Tools], ParsedText]
"""A pure function of a text and the tools. It raises nothing and takes time in proportion to the text."""

Renderer = Callable[[Sequence[ToolCall]], str]
"""A function that returns the text with which a model of the family makes these calls. It raises ValueError for calls
that the format cannot carry.
"""


class Format(NamedTuple):
    """The format of tool calls of one family of models: a parser and a renderer."""

    parse: Parser
    render: Renderer


def valid_id(value: object) -> str:
    """Return an id that a model wrote if it has the form of `derive_id`, else an empty string."""
    return value if isinstance(value, str) and _GOOD_ID.fullmatch(value) else ""


def derive_id(*seeds: object) -> str:
    """Return an id for a call without one. The same seeds give the same id.

    It has nine letters and digits, the only form that every chat template accepts.
    """
    number = int.from_bytes(hashlib.blake2b(repr(seeds).encode("utf-8", "backslashreplace"), digest_size=8).digest())
    call_id = ""
    for _ in range(_ID_LENGTH):
        number, digit = divmod(number, len(_ID_ALPHABET))
        call_id += _ID_ALPHABET[digit]
    return call_id
