"""What of the history the model sees: all of it, or what a compaction policy leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hermes_agent.messages import Message
from hermes_exec.errors import ConfigError

Context = Callable[[Sequence[Message]], Sequence[Message]]
"""Which messages are sent, given all of them. It returns the same list to send everything, or a new one; it never
changes a message. An episode in which it left something out has no exact sequence of tokens (`Episode.compacted`).
"""

_SHOWN_HEAD, _SHOWN_TAIL = 100, 50


def characters(message: Message) -> int:
    """The size of a message in characters, calls and thinking included."""
    calls = sum(len(str(call["function"])) for call in message.get("tool_calls") or ())
    return len(str(message.get("content") or "")) + len(str(message.get("reasoning_content") or "")) + calls


@dataclass(frozen=True)
class ShortenOldResults:
    """A `Context` that keeps a conversation within `max_chars` characters (a token is about four).

    The first `first` messages (default 2) and the last `last` (default 6) are kept as they are. Between them the oldest
    tool results are shortened to their first 100 and last 50 characters, until it fits; when that is not enough, the
    oldest turns are left out, each with its results.
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
        if over <= 0 or begin >= end:
            return history
        middle = list(history[begin:end])
        for index, message in enumerate(middle):
            if over <= 0:
                break
            if message.get("role") == "tool":
                middle[index] = _shortened(message)
                over -= characters(message) - characters(middle[index])
        while middle and over > 0:
            turn = _past_results(middle, 1)
            over -= sum(map(characters, middle[:turn]))
            del middle[:turn]
        return [*history[:begin], *middle, *history[end:]]


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


def _shortened(message: Message) -> Message:
    content = str(message.get("content") or "")
    left_out = len(content) - _SHOWN_HEAD - _SHOWN_TAIL
    if left_out <= 0:
        return message
    return {**message, "content": f"{content[:_SHOWN_HEAD]} … {left_out} characters … {content[-_SHOWN_TAIL:]}"}
