"""What one task waits on until the event loop has news for it: a bare future on asyncio, an event elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol

import anyio

from hermes_exec.aio.loop import asyncio_loop


class Waker(Protocol):
    """Wakes a task by a signal of one event loop, which is set once; one task at a time may wait for it."""

    def make(self) -> Any:  # noqa: ANN401 -- each library has its own kind
        """A new signal."""

    def wait(self, signal: Any) -> Awaitable[object]:  # noqa: ANN401
        """What returns when the signal is set."""

    def wake(self, signal: Any) -> None:  # noqa: ANN401
        """Set the signal; harmless when repeated."""


class FutureWaker:
    """The waker for asyncio: an anyio.Event costs five times as much."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.make = loop.create_future

    def wait(self, signal: asyncio.Future[None]) -> Awaitable[None]:
        """The future itself."""
        return signal

    def wake(self, signal: asyncio.Future[None]) -> None:
        """A task that was cancelled has cancelled its future."""
        if not signal.done():
            signal.set_result(None)


class EventWaker:
    """The waker for every other library that anyio supports."""

    make = anyio.Event

    def wait(self, signal: anyio.Event) -> Awaitable[None]:
        """The wait of the event."""
        return signal.wait()

    def wake(self, signal: anyio.Event) -> None:
        """Set it."""
        signal.set()


def current_waker() -> Waker:
    """The waker for the running event loop."""
    loop = asyncio_loop()
    return EventWaker() if loop is None else FutureWaker(loop)
