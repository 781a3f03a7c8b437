"""What goes on in a browser by itself, while nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from hermes_exec.tools.browser.playwright_driver import ignore_errors


class BackgroundTasks:
    """Keeps tasks until they end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()

    def start(self, work: Callable[[], Awaitable[object]]) -> None:
        """Begin something, which fails unnoticed when the page or the browser is gone."""
        self.keep(asyncio.ensure_future(ignore_errors(work)))

    def keep(self, task: asyncio.Future[Any]) -> None:
        """Let something go on that was begun already."""
        self._tasks.add(task)
        task.add_done_callback(self._discard)

    async def wait(self) -> None:
        """Return when nothing goes on any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self) -> None:
        """End all of it."""
        for task in list(self._tasks):
            task.cancel()

    def _discard(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()
