"""Tells which code holds up the event loop: meanwhile no rollout goes on, and no signal is heard."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback

import anyio

_LOG = logging.getLogger(__name__)
HELD_UP_S = 5.0
_TURN_S = 0.5
_SHOWN_FRAMES = 4


class LoopWatch:
    """Looks at the event loop of its `run` from a thread, and warns once each time that it has not turned for
    `HELD_UP_S` seconds, with the place in the code where it stands.
    """

    def __init__(self) -> None:
        self._turned_at, self._late = time.monotonic(), 0

    async def run(self) -> None:
        """Watch until it is cancelled."""
        ended = threading.Event()
        watched = (threading.get_ident(), ended)
        threading.Thread(target=self._watch, args=watched, name="loop-watch", daemon=True).start()
        try:
            while True:
                self._turned_at, self._late = time.monotonic(), 0
                await anyio.sleep(_TURN_S)
        finally:
            ended.set()

    def _watch(self, thread: int, ended: threading.Event) -> None:
        while not ended.wait(_TURN_S):
            stood_s = time.monotonic() - self._turned_at
            if stood_s < HELD_UP_S:
                continue
            self._late += 1
            if self._late == 2:  # at the first, the whole process may have been stopped
                _warn(stood_s, traceback.format_stack(sys._current_frames().get(thread))[-_SHOWN_FRAMES:])


def _warn(stood_s: float, stack: list[str]) -> None:
    _LOG.warning(
        "the event loop has stood still for %.0f s, and all rollouts with it. What takes so long belongs in a thread: "
        "await anyio.to_thread.run_sync(…). It is here:\n%s",
        stood_s,
        "".join(stack),
    )
