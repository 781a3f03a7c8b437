"""Notices that the event loop of a pool was closed before the pool."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hermes_exec.aio.loop import is_loop_closed, running_loop

CHECK_S = 1.0


class ClosedLoopWatch:
    """Looks at the running event loop from the thread of the keepalives, which runs while there are sandboxes.

    A loop that ends by `asyncio.run` cancels its tasks, and with them closes its pools. One that is only closed
    (`loop.close()`) runs nothing any more: `on_closed` is then called in a thread of its own.
    """

    interval_s = CHECK_S

    def __init__(self, on_closed: Callable[[], None]) -> None:
        self._loop = running_loop()
        self._on_closed = on_closed
        self._noticed = False

    def send_if_due(self, now: float) -> None:
        """Check the loop. The thread of the keepalives calls this."""
        if not self._noticed and is_loop_closed(self._loop):
            self._noticed = True
            threading.Thread(target=self._on_closed, name="hermes-exec-loop-closed", daemon=True).start()
