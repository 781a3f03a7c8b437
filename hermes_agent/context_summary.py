"""A context that replaces old turns by a summary, which the episode's own model writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from hermes_agent.context import ShortenOldResults, characters, find_middle, shorten_results
from hermes_agent.messages import Completion, Message, calls_of, content_of, image_parts, message_text

Complete = Callable[[Sequence[Message]], Awaitable[Completion]]
"""Requests a completion without tools from the model of an episode, and counts its usage."""

_INSTRUCTIONS = (
    "You work on a task with tools, and the conversation has become too long. Summarise the part of it that follows. "
    "You will continue the task with this summary in its place, so keep everything that you still need: the steps so "
    "far and their results, the paths of files that were read or changed, exact names, values, commands and errors, "
    "and the open steps. Answer with the summary only."
)
_HEADING = "[The earlier part of the conversation was replaced by this summary]"


@dataclass(frozen=True)
class SummariseOldTurns:
    """A context that keeps a conversation within `max_chars` characters by summaries of its old turns.

    When the conversation has become too long, the model of the episode summarises the messages between the first and
    the last ones, with its earlier summary. The summary takes their place in later requests. Its usage counts in the
    episode. If the rest is still too long, or the model writes no summary, messages are shortened as by
    `ShortenOldResults`.

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
        ShortenOldResults(self.max_chars, self.first, self.last)

    def begin(self, complete: Complete) -> EpisodeSummary:
        """Return the context of one episode."""
        return EpisodeSummary(self, complete)


class EpisodeSummary:
    """The context of one episode, with the summary of its old turns."""

    def __init__(self, sizes: SummariseOldTurns, complete: Complete) -> None:
        self._max_chars, self._first, self._last = sizes.max_chars, sizes.first, sizes.last
        self._complete = complete
        self._text = ""
        self._begin = self._end = 0
        """The messages that the summary replaces."""

    async def select(self, history: Sequence[Message]) -> Sequence[Message]:
        """Return the messages to send.

        Raises:
            ModelError: If the request for a summary fails.
        """
        if self._is_too_long(self._replace_old(history)):
            begin, end = find_middle(history, self._first, self._last)
            start = max(begin, self._end)
            if start < end:
                await self._summarise(history[start:end], begin, end)
        selection = self._replace_old(history)
        if not self._is_too_long(selection):
            return selection
        first = len(selection) - len(history) + self._end if self._text else self._first
        return ShortenOldResults(self._max_chars, first, self._last)(selection)

    def _is_too_long(self, messages: Sequence[Message]) -> bool:
        return sum(map(characters, messages)) > self._max_chars

    async def _summarise(self, messages: Sequence[Message], begin: int, end: int) -> None:
        shorter = list(messages)
        shorten_results(shorter, sum(map(characters, messages)) - self._max_chars // 2)
        parts = [f"Summary of the part before:\n{self._text}"] if self._text else []
        transcript = "\n\n".join([*parts, *map(_describe, shorter)])[: self._max_chars]
        completion = await self._complete(
            [{"role": "system", "content": _INSTRUCTIONS}, {"role": "user", "content": transcript}]
        )
        text = (completion.content or "").strip()[: self._max_chars // 4]
        if text:
            self._text, self._begin, self._end = text, begin, end

    def _replace_old(self, history: Sequence[Message]) -> Sequence[Message]:
        """Return the history with the summary. It becomes a part of the message before it if that one is the user's:
        chat templates may not allow two in a row.
        """
        if not self._text:
            return history
        head, text = list(history[: self._begin]), f"{_HEADING}\n{self._text}"
        if head and head[-1].get("role") == "user":
            last = head.pop()
            text = f"{message_text(last)}\n\n{text}"
            head.append({**last, "content": content_of(text, image_parts(last))})
        else:
            head.append({"role": "user", "content": text})
        return [*head, *history[self._end :]]


def _describe(message: Message) -> str:
    calls = [f"{call.name}({call.arguments})" for call in calls_of(message)]
    return "\n".join(filter(None, (f"[{message.get('role')}]", message_text(message), *calls)))
