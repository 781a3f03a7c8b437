"""The order of calls that run side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class CallQueue:
    """Running calls in order of arrival."""

    def __init__(self) -> None:
        self._events: deque[anyio.Event] = deque()

    @contextmanager
    def join(self) -> Iterator[anyio.Event]:
        """Join the queue until the end of the block. The event is set once all earlier calls have left."""
        first = anyio.Event()
        self._events.append(first)
        self._call_first()
        try:
            yield first
        finally:
            self._events.remove(first)
            self._call_first()

    def _call_first(self) -> None:
        if self._events:
            self._events[0].set()
