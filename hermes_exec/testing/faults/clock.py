"""A wall clock that jumps, as this process sees it by `time.time` and `time.time_ns`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

NS = 1_000_000_000


class WallClock:
    """Replaces the functions of `time` while a jump is in effect; several jumps add up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jumps: list[float] = []
        self._time, self._time_ns = time.time, time.time_ns

    def jump(self, by_s: float) -> None:
        """Set the clock forward by so many seconds from now on."""
        with self._lock:
            self._jumps.append(by_s)
            time.time, time.time_ns = self._time_after_jumps, self._time_ns_after_jumps

    def jump_back(self, by_s: float) -> None:
        """Undo one jump; after the last one `time` has its own functions again."""
        with self._lock:
            self._jumps.remove(by_s)
            if not self._jumps:
                time.time, time.time_ns = self._time, self._time_ns

    def _time_after_jumps(self) -> float:
        return self._time() + sum(self._jumps)

    def _time_ns_after_jumps(self) -> int:
        return self._time_ns() + int(sum(self._jumps) * NS)


WALL_CLOCK = WallClock()


@contextmanager
def clock_jump(by_s: float) -> Iterator[None]:
    """Move the clock of this process by `by_s` seconds within the block."""
    WALL_CLOCK.jump(by_s)
    try:
        yield
    finally:
        WALL_CLOCK.jump_back(by_s)
