"""Tasks of a browser that run while no call waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from hermes_exec.tools.browser.playwright_driver import ignore_errors


class BackgroundTasks:
    """Holds references to tasks until they end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()

    def start(self, work: Callable[[], Awaitable[object]]) -> None:
        """Start a task. Its errors are ignored if the page or the browser is gone."""
        self.keep(asyncio.ensure_future(ignore_errors(work)))

    def keep(self, task: asyncio.Future[Any]) -> None:
        """Hold a task that already runs."""
        self._tasks.add(task)
        task.add_done_callback(self._discard)

    async def wait(self) -> None:
        """Wait until no task runs."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in list(self._tasks):
            task.cancel()

    def _discard(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()
