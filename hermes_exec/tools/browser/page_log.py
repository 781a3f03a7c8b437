"""Console messages and errors of pages: the newest, within limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, ConsoleMessage, WebError

MAX_ENTRIES = 500
MAX_TEXT_CHARS = 4000


class PageLog:
    """The newest console messages and errors of all tabs."""

    def __init__(self) -> None:
        self._messages: deque[dict[str, object]] = deque(maxlen=MAX_ENTRIES)
        self._errors: deque[dict[str, object]] = deque(maxlen=MAX_ENTRIES)
        self._message_count = self._error_count = 0
        self._discounted: dict[str, int] = {}

    def watch(self, context: BrowserContext) -> None:
        """Record the messages and errors of a context's tabs from now on."""
        context.on("console", self._on_message)
        context.on("weberror", self._on_error)

    def report(self, left_out: Mapping[str, int]) -> dict[str, Any]:
        """Return the newest entries and the total counts.

        `left_out` is the number of events that were filtered out, by method.
        """
        logged, thrown = (
            left_out.get(kind, 0) - self._discounted.get(kind, 0)
            for kind in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        )
        return {
            "console_messages": list(self._messages),
            "js_errors": list(self._errors),
            "total_messages": self._message_count + logged,
            "total_errors": self._error_count + thrown,
        }

    def forget(self, left_out: Mapping[str, int]) -> None:
        """Drop all entries and reset the counts."""
        self._messages.clear()
        self._errors.clear()
        self._message_count = self._error_count = 0
        self._discounted = dict(left_out)

    def _on_message(self, message: ConsoleMessage) -> None:
        self._message_count += 1
        self._messages.append({"type": message.type, "text": message.text[:MAX_TEXT_CHARS], "source": "console"})

    def _on_error(self, event: WebError) -> None:
        self._error_count += 1
        self._errors.append({"message": event.error.message[:MAX_TEXT_CHARS], "source": "exception"})
