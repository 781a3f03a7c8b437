"""Tells which code holds up the event loop: meanwhile no rollout goes on, and no signal is heard."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback

import anyio

from hermes_exec.channel.keepalive import HEART

_LOG = logging.getLogger(__name__)
HELD_UP_S = 5.0
_TICK_S = 0.5
_SHOWN_FRAMES = 4


class LoopWatch:
    """Looks at the event loop of its `run` from the thread of the keepalives, and warns once each time that it has not
    turned for `HELD_UP_S` seconds, with the place in the code where it stands.
    """

    interval_s = 1.0

    def __init__(self) -> None:
        self._turned_at, self._late = time.monotonic(), 0

    async def run(self) -> None:
        """Watch until it is cancelled."""
        self._thread = threading.get_ident()
        HEART.add(self)
        try:
            while True:
                self._turned_at, self._late = time.monotonic(), 0
                await anyio.sleep(_TICK_S)
        finally:
            HEART.remove(self)

    def beat(self, now: float) -> None:
        """See `Beating.beat`."""
        if now - self._turned_at < HELD_UP_S:
            return
        self._late += 1
        if self._late != 2:  # at the first, the whole process may have been stopped
            return
        frame = sys._current_frames().get(self._thread)
        where = "".join(traceback.format_stack(frame)[-_SHOWN_FRAMES:])
        _LOG.warning(
            "the event loop has stood still for %.0f s, and all rollouts with it. What takes so long belongs in a "
            "thread: await anyio.to_thread.run_sync(…). It is here:\n%s",
            now - self._turned_at,
            where,
        )
