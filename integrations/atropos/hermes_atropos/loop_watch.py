"""Tells which code holds up the event loop: meanwhile no rollout goes on, and no signal is heard."""

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


class LoopWatch:
    """Looks at the event loop of its `run` from a thread, and warns once each time that it has not turned for
    `STALL_S` seconds, with the place in the code where it stands.
    """

    def __init__(self) -> None:
        self._turned_at, self._late_checks = time.monotonic(), 0

    async def run(self) -> None:
        """Watch until it is cancelled."""
        ended = threading.Event()
        watched = (threading.get_ident(), ended)
        threading.Thread(target=self._watch, args=watched, name="loop-watch", daemon=True).start()
        try:
            while True:
                self._turned_at, self._late_checks = time.monotonic(), 0
                await anyio.sleep(_PERIOD_S)
        finally:
            ended.set()

    def _watch(self, thread: int, ended: threading.Event) -> None:
        while not ended.wait(_PERIOD_S):
            stalled_s = time.monotonic() - self._turned_at
            if stalled_s < STALL_S:
                continue
            self._late_checks += 1
            if self._late_checks == 2:  # at the first, the whole process may have been stopped
                _warn(stalled_s, traceback.format_stack(sys._current_frames().get(thread))[-_FRAMES:])


def _warn(stalled_s: float, stack: list[str]) -> None:
    logger.warning(
        "the event loop has stood still for %.0f s, and all rollouts with it. What takes so long belongs in a thread: "
        "await anyio.to_thread.run_sync(…). It is here:\n%s",
        stalled_s,
        "".join(stack),
    )
