"""Signals that wake one waiting task: a bare future on asyncio, an event elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol

import anyio

from hermes_exec.aio.loop import asyncio_loop


class Waker(Protocol):
    """The signals of one event loop. A signal is set once; one task at a time may wait for it."""

    def make(self) -> Any:  # noqa: ANN401 -- each event loop has its own type
        """Make a new signal."""

    def wait(self, signal: Any) -> Awaitable[object]:  # noqa: ANN401
        """Return an awaitable that finishes when the signal is set."""

    def wake(self, signal: Any) -> None:  # noqa: ANN401
        """Set the signal. Repeated calls do nothing."""


# Not the obvious code: see docs/why-not-obvious.md ("A future instead of an event").
class FutureWaker:
    """The waker for asyncio: an anyio.Event costs five times as much."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.make = loop.create_future

    def wait(self, signal: asyncio.Future[None]) -> Awaitable[None]:
        """Return the future itself."""
        return signal

    def wake(self, signal: asyncio.Future[None]) -> None:
        """Set the signal, unless a cancelled task has cancelled its future."""
        if not signal.done():
            signal.set_result(None)


class EventWaker:
    """The waker for every other event loop that anyio supports."""

    make = anyio.Event

    def wait(self, signal: anyio.Event) -> Awaitable[None]:
        """Return the event's `wait`."""
        return signal.wait()

    def wake(self, signal: anyio.Event) -> None:
        """Set the event."""
        signal.set()


def current_waker() -> Waker:
    """Return the waker for the running event loop."""
    loop = asyncio_loop()
    return EventWaker() if loop is None else FutureWaker(loop)
