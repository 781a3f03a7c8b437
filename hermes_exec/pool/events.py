"""Delivery of pool events: iterators with a bounded buffer, and one callback."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from hermes_exec.aio.loop import interrupt_main, is_cancelled_from_outside
from hermes_exec.redact import mask
from hermes_exec.results import PoolEvent

if TYPE_CHECKING:
    from hermes_exec.tracing import Tracer

logger = logging.getLogger(__name__)
MAX_BUFFERED_EVENTS = 1000
OnEvent = Callable[[PoolEvent], Awaitable[object] | object]


class Events(AsyncIterator[PoolEvent]):
    """An iterator over the events of a pool, from its creation until the pool closes.

    At most 1,000 events wait for a slow reader. Then the oldest is dropped, and `dropped` counts it.
    """

    def __init__(self, hub: EventHub) -> None:
        self.dropped = 0
        self._hub = hub
        self._waiting: deque[PoolEvent] = deque()
        self._news = anyio.Event()
        self._ended = False

    def put(self, event: PoolEvent) -> None:
        """Add an event."""
        if len(self._waiting) >= MAX_BUFFERED_EVENTS:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(event)
        self._news.set()

    def end(self) -> None:
        """End the iteration after the buffered events."""
        self._ended = True
        self._news.set()

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> PoolEvent:
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            self._news = anyio.Event()
            await self._news.wait()
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """Stop listening."""
        self._hub.leave(self)
        self.end()


def _report_error(error: BaseException, message: str) -> None:
    """Log an exception of a callback. A KeyboardInterrupt is raised again in the main thread."""
    logger.error(message, exc_info=error)
    if isinstance(error, KeyboardInterrupt):
        interrupt_main()


class EventHub:
    """Delivers events in order to iterators, the tracer and the callback. Exceptions of the callback are logged."""

    def __init__(self, on_event: OnEvent | None, secrets: list[str] | None = None) -> None:
        self.tracer: Tracer | None = None
        self.secrets = secrets or []
        self._on_event = on_event
        self._listeners: list[Events] = []
        self._pending: deque[Awaitable[object]] = deque()
        self._news = anyio.Event()
        self._ended = False

    def listen(self) -> Events:
        """Return a new iterator."""
        events = Events(self)
        if self._ended:
            events.end()
        else:
            self._listeners.append(events)
        return events

    def leave(self, events: Events) -> None:
        """Remove an iterator."""
        if events in self._listeners:
            self._listeners.remove(events)

    def emit(self, event: PoolEvent) -> None:
        """Deliver an event to all listeners. Never blocks and never raises."""
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s", mask(repr(event), self.secrets))
        if self.tracer is not None:
            self.tracer.event(event)
        for listener in self._listeners:
            listener.put(event)
        if self._on_event is None:
            return
        try:
            result = self._on_event(event)
        except BaseException as error:  # noqa: BLE001 - it would end the task of the pool that emitted the event
            _report_error(error, f"on_event failed for {type(event).__name__}")
            return
        if inspect.isawaitable(result):
            self._pending.append(result)
            self._news.set()

    async def run(self) -> None:
        """Await the results of an async callback, one after the other, until `end`."""
        while True:
            while self._pending:
                result = self._pending.popleft()
                try:
                    await result
                except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - as in `emit`
                    _report_error(error, "on_event failed")
                except asyncio.CancelledError:
                    if is_cancelled_from_outside():
                        raise
                    logger.exception("on_event failed")
            if self._ended:
                return
            self._news = anyio.Event()
            await self._news.wait()

    def end(self) -> None:
        """End all iterators. `run` returns when the callback has received every event."""
        self._ended = True
        for listener in self._listeners:
            listener.end()
        self._listeners.clear()
        if self.tracer is not None:
            self.tracer.close()
        self._news.set()

    def drop(self) -> None:
        """Drop the events that the callback has not received."""
        for result in self._pending:
            if inspect.iscoroutine(result):
                result.close()
        self._pending.clear()
