"""One thread for each process that keeps all leases alive, even while user code blocks the event loop."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Protocol
from weakref import WeakSet

logger = logging.getLogger(__name__)
TICK_S = 0.5


class KeepaliveSender(Protocol):
    """A sender of keepalives that the thread calls."""

    @property
    def interval_s(self) -> float:
        """Seconds between keepalives."""

    def send_if_due(self, now: float) -> None:
        """Send a keepalive if one is due. The thread calls this."""


class KeepaliveThread:
    """A daemon thread that calls `send_if_due` of all registered senders, and runs only while there are any.

    A forked process starts its own thread.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._members: WeakSet[KeepaliveSender] = WeakSet()
        self._thread: threading.Thread | None = None

    def add(self, member: KeepaliveSender) -> None:
        """Register a sender."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            self._members.add(member)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hermes-exec-keepalive", daemon=True)
                self._thread.start()

    def remove(self, member: KeepaliveSender) -> None:
        """Unregister a sender."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._members.discard(member)

    def _run(self) -> None:
        while True:
            with self._lock:
                shortest_s = min((member.interval_s for member in self._members), default=TICK_S)
            time.sleep(min(TICK_S, shortest_s / 2))
            with self._lock:
                members = list(self._members)
                if not members:
                    self._thread = None
                    return
            now = time.monotonic()
            for member in members:
                try:
                    member.send_if_due(now)
                except Exception:
                    logger.exception("keepalive failed")
            del members


KEEPALIVE_THREAD = KeepaliveThread()
