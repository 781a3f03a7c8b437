"""Pools that all parts of a program share: one for each process, event loop and configuration."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from hermes_exec.aio.loop import is_loop_closed
from hermes_exec.pool.lifecycle import Lifecycle

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from hermes_exec.aio.portal import Portals

P = TypeVar("P")


class SharedPools:
    """The shared pools of one process, by their event loop and their settings."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[tuple[object, ...], tuple[Lifecycle, Any]] = {}
        self._portal: BlockingPortal | None = None

    def get(self, loop: object, new: P, life: Lifecycle) -> P:
        """Return the pool of this event loop that has the settings of `new`, or `new` itself if there is none that is
        not closed. `life` is that of `new`.
        """
        key = loop, *life.key()
        with self._lock:
            self._pools = {
                each: entry
                for each, entry in self._pools.items()
                if not (entry[0].is_closed or is_loop_closed(each[0]))
            }
            if key not in self._pools:
                life.closes_when_idle = True
                self._pools[key] = life, new
            pool: P = self._pools[key][1]
            return pool

    def portal(self, portals: Portals) -> BlockingPortal:
        """Return the portal of the blocking pools. Its event loop runs until the process ends."""
        with self._lock:
            if self._portal is None:
                self._context = portals.open()
                self._portal = self._context.__enter__()
            return self._portal


_pools: dict[int, SharedPools] = {}
"""The shared pools by process. A fork keeps those of its parent, because freeing an event loop that runs in another
process closes its files.
"""


def shared_pools() -> SharedPools:
    """Return the shared pools of this process."""
    return _pools.setdefault(os.getpid(), SharedPools())  # without a lock, which a fork could find held
