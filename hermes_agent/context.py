"""Selects the part of the history that the model sees: all of it, or a compacted part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hermes_agent.messages import Message, image_parts, message_text
from hermes_exec.errors import ConfigError

Context = Callable[[Sequence[Message]], Sequence[Message]]
"""A function that selects, of all messages, the messages to send. It returns the same list to send everything, or a new
list; it never changes a message. An episode in which it left something out has no exact sequence of tokens
(`Episode.compacted`).
"""

_KEPT_HEAD, _KEPT_TAIL = 100, 50
IMAGE_CHARS = 4000
"""The size of an image in characters: models spend about a thousand tokens on a screenshot."""


def characters(message: Message) -> int:
    """Return the size of a message in characters, calls and thinking included. An image counts as `IMAGE_CHARS`."""
    calls = sum(len(str(call["function"])) for call in message.get("tool_calls") or ())
    text = len(message_text(message)) + len(str(message.get("reasoning_content") or ""))
    return text + IMAGE_CHARS * len(image_parts(message)) + calls


@dataclass(frozen=True)
class ShortenOldResults:
    """A `Context` that keeps a conversation within `max_chars` characters.

    Until the conversation fits, it does the following in order:

    1. Shorten the oldest tool results between the first and the last messages to their first 100 and last 50
    characters, without their images.
    2. Leave out the oldest turns in that range, each with its results.
    3. Shorten the oldest results outside the range.

    Messages of the user and of the model outside the range are always sent, however long they are.

    Args:
        max_chars: The most characters to send (a token is about four).
        first: How many messages at the beginning are kept.
        last: How many messages at the end are kept.

    Raises:
        ConfigError: If a number is below 1.
    """

    max_chars: int
    first: int = 2
    last: int = 6

    def __post_init__(self) -> None:
        for name, value, least in (("max_chars", self.max_chars, 1), ("first", self.first, 1), ("last", self.last, 1)):
            if value < least:
                raise ConfigError(f"{name} is at least {least}, not {value}")

    def __call__(self, history: Sequence[Message]) -> Sequence[Message]:
        """Return the messages to send."""
        over = sum(map(characters, history)) - self.max_chars
        begin, end = find_middle(history, self.first, self.last)
        if over <= 0:
            return history
        head, middle, tail = (
            list(history[:begin]),
            list(history[begin:end]),
            list(history[end:]),
        )
        over = shorten_results(middle, over)
        while middle and over > 0:
            turn = _past_results(middle, 1)
            over -= sum(map(characters, middle[:turn]))
            del middle[:turn]
        shorten_results(tail, shorten_results(head, over))
        return [*head, *middle, *tail]


def find_middle(history: Sequence[Message], first: int, last: int) -> tuple[int, int]:
    """Return the range between the first and the last messages. No result is separated from its call."""
    begin = _past_results(history, first)
    return begin, max(begin, _turn_start(history, len(history) - last))


def shorten_results(messages: list[Message], over: int) -> int:
    """Shorten the oldest results until `over` characters are saved. Return how many are still over."""
    for index, message in enumerate(messages):
        if over > 0 and message.get("role") == "tool":
            messages[index] = _shorten_result(message)
            over -= characters(message) - characters(messages[index])
    return over


def _turn_start(messages: Sequence[Message], index: int) -> int:
    """Return the start of the turn that contains the message, so that no result is without its call."""
    while index > 0 and messages[index].get("role") == "tool":
        index -= 1
    return index


def _past_results(messages: Sequence[Message], index: int) -> int:
    """Return the index of the next message that is not a tool result."""
    while index < len(messages) and messages[index].get("role") == "tool":
        index += 1
    return index


def _shorten_result(message: Message) -> Message:
    content = message_text(message)
    left_out = len(content) - _KEPT_HEAD - _KEPT_TAIL
    if left_out <= 0:
        return {**message, "content": content}
    return {**message, "content": f"{content[:_KEPT_HEAD]} … {left_out} characters … {content[-_KEPT_TAIL:]}"}
