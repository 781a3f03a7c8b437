"""A watchdog that logs the code that blocks the event loop. While it is blocked, no rollout continues and signals are
not handled.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback

import anyio

logger = logging.getLogger(__name__)
STALL_S = 5.0
_PERIOD_S = 0.5
_FRAMES = 4
_MAX_SAMPLES = 7200


class LoopWatch:
    """Watches the event loop of its `run` from a thread. Whenever the loop has been blocked for `STALL_S` seconds, it
    logs one warning with the stack of the blocking code. It also measures how late the loop is.
    """

    def __init__(self) -> None:
        self._turned_at, self._late_checks = time.monotonic(), 0
        self._lateness: list[float] = []

    def take_lateness(self) -> list[float]:
        """Return how late the loop was, in seconds, every half second since the last call."""
        taken, self._lateness = self._lateness, []
        return taken

    async def run(self) -> None:
        """Watch until cancelled."""
        ended = threading.Event()
        watched = (threading.get_ident(), ended)
        threading.Thread(target=self._watch, args=watched, name="loop-watch", daemon=True).start()
        try:
            while True:
                self._turned_at, self._late_checks = time.monotonic(), 0
                await anyio.sleep(_PERIOD_S)
                self._lateness.append(max(0.0, time.monotonic() - self._turned_at - _PERIOD_S))
                del self._lateness[:-_MAX_SAMPLES]
        finally:
            ended.set()

    def _watch(self, thread: int, ended: threading.Event) -> None:
        while not ended.wait(_PERIOD_S):
            stalled_s = time.monotonic() - self._turned_at
            if stalled_s < STALL_S:
                continue
            self._late_checks += 1
            if self._late_checks == 2:  # after the first check the whole process may have been suspended
                _warn(stalled_s, traceback.format_stack(sys._current_frames().get(thread))[-_FRAMES:])


def _warn(stalled_s: float, stack: list[str]) -> None:
    logger.warning(
        "the event loop, and with it every rollout, has been blocked for %.0f s. Run blocking code in a thread: "
        "await anyio.to_thread.run_sync(…). It is blocked here:\n%s",
        stalled_s,
        "".join(stack),
    )
