"""What one task waits on until the event loop has news for it: a bare future on asyncio, an event elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol

import anyio

from hermes_exec.aio.loop import asyncio_loop


class Waker(Protocol):
    """Makes bells of one event loop. A bell rings once, and one task at a time may wait for it."""

    def make(self) -> Any:  # noqa: ANN401 -- each library has its own kind
        """A new bell."""

    def wait(self, signal: Any) -> Awaitable[object]:  # noqa: ANN401
        """What returns when it rings."""

    def wake(self, signal: Any) -> None:  # noqa: ANN401
        """Ring it; harmless when repeated."""


class FutureWaker:
    """Of asyncio: an anyio.Event costs five times as much."""

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
    """Of any library that anyio knows."""

    make = anyio.Event

    def wait(self, signal: anyio.Event) -> Awaitable[None]:
        """The wait of the event."""
        return signal.wait()

    def wake(self, signal: anyio.Event) -> None:
        """Set it."""
        signal.set()


def current_waker() -> Waker:
    """Those of the running event loop."""
    loop = asyncio_loop()
    return EventWaker() if loop is None else FutureWaker(loop)
