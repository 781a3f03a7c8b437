"""What of the history the model sees: all of it, or what a compaction policy leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hermes_agent.messages import Message, image_parts, message_text
from hermes_exec.errors import ConfigError

Context = Callable[[Sequence[Message]], Sequence[Message]]
"""Which messages are sent, given all of them. It returns the same list to send everything, or a new one; it never
changes a message. An episode in which it left something out has no exact sequence of tokens (`Episode.compacted`).
"""

_KEPT_HEAD, _KEPT_TAIL = 100, 50
IMAGE_CHARS = 4000
"""What an image counts as: models take about a thousand tokens for a screenshot."""


def characters(message: Message) -> int:
    """The size of a message in characters, calls and thinking included; an image counts as `IMAGE_CHARS`."""
    calls = sum(len(str(call["function"])) for call in message.get("tool_calls") or ())
    text = len(message_text(message)) + len(str(message.get("reasoning_content") or ""))
    return text + IMAGE_CHARS * len(image_parts(message)) + calls


@dataclass(frozen=True)
class ShortenOldResults:
    """A `Context` that keeps a conversation within `max_chars` characters (a token is about four).

    Between the first `first` messages (default 2) and the last `last` (default 6) the oldest tool results are shortened
    to their first 100 and last 50 characters, without their images, until it fits; when that is not enough, the oldest
    turns there are left out, each with its results; and when that is not enough either, the oldest results outside are
    shortened too. What the user and the model said there is always sent, however long it is.
    """

    max_chars: int
    first: int = 2
    last: int = 6

    def __post_init__(self) -> None:
        for name, value, least in (("max_chars", self.max_chars, 1), ("first", self.first, 1), ("last", self.last, 1)):
            if value < least:
                raise ConfigError(f"{name} is at least {least}, not {value}")

    def __call__(self, history: Sequence[Message]) -> Sequence[Message]:
        """The messages to send."""
        over = sum(map(characters, history)) - self.max_chars
        begin, end = _past_results(history, self.first), _turn_start(history, len(history) - self.last)
        if over <= 0:
            return history
        head, middle, tail = (
            list(history[:begin]),
            list(history[begin : max(begin, end)]),
            list(history[max(begin, end) :]),
        )
        over = _shorten_results(middle, over)
        while middle and over > 0:
            turn = _past_results(middle, 1)
            over -= sum(map(characters, middle[:turn]))
            del middle[:turn]
        _shorten_results(tail, _shorten_results(head, over))
        return [*head, *middle, *tail]


def _shorten_results(messages: list[Message], over: int) -> int:
    """Shorten the oldest results until that many characters are saved. How many are still too many."""
    for index, message in enumerate(messages):
        if over > 0 and message.get("role") == "tool":
            messages[index] = _shorten_result(message)
            over -= characters(message) - characters(messages[index])
    return over


def _turn_start(messages: Sequence[Message], index: int) -> int:
    """The begin of the turn that the message is in: no result is without its call."""
    while index > 0 and messages[index].get("role") == "tool":
        index -= 1
    return index


def _past_results(messages: Sequence[Message], index: int) -> int:
    """The index of the next message that is no tool result."""
    while index < len(messages) and messages[index].get("role") == "tool":
        index += 1
    return index


def _shorten_result(message: Message) -> Message:
    content = message_text(message)
    left_out = len(content) - _KEPT_HEAD - _KEPT_TAIL
    if left_out <= 0:
        return {**message, "content": content}
    return {**message, "content": f"{content[:_KEPT_HEAD]} … {left_out} characters … {content[-_KEPT_TAIL:]}"}
