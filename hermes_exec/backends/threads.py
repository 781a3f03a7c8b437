"""Blocking launches in threads: the caller gets the result, or it is undone if the caller has left."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

from hermes_exec.errors import LaunchError

logger = logging.getLogger(__name__)
T = TypeVar("T")


class _Handover(Generic[T]):
    """Passes the thread's result to exactly one side."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: list[T] = []
        self._abandoned = False

    def put(self, result: T) -> bool:
        """Store the result. Return False if the caller has stopped waiting."""
        with self._lock:
            self._results.append(result)
            return not self._abandoned

    def leave(self) -> list[T]:
        """Stop waiting, and return a result that is already there; the caller must undo it."""
        with self._lock:
            self._abandoned = True
            return self._results


async def run_in_thread(work: Callable[[], T], limiter: anyio.CapacityLimiter) -> T:
    """Run blocking work in a thread. If the caller is cancelled, the work goes on."""
    return await anyio.to_thread.run_sync(work, limiter=limiter, abandon_on_cancel=True)


async def launch_in_thread(
    make: Callable[[], T],
    unmake: Callable[[T], None],
    limiter: anyio.CapacityLimiter | None = None,
    patience: anyio.CancelScope | None = None,
) -> T:
    """Run `make` in a thread and return its result. If the caller is cancelled meanwhile, `unmake` undoes the result.

    A cancelled caller also waits for the thread, unless `patience` (a shielded scope) is cancelled or a cancellation
    bypasses anyio: then the thread undoes its own result.

    Raises:
        LaunchError: If `patience` was cancelled.
    """
    handover: _Handover[T] = _Handover()
    ended = threading.Event()

    def work() -> T:
        try:
            result = make()
            if not handover.put(result):
                unmake(result)
            return result
        finally:
            ended.set()

    try:
        with patience or anyio.CancelScope(shield=True) as scope:
            result = await anyio.to_thread.run_sync(work, limiter=limiter, abandon_on_cancel=True)
        if scope.cancelled_caught:
            atexit.register(ended.wait)  # trio's threads end with the program
            raise LaunchError("the launch was abandoned")
        await anyio.lowlevel.checkpoint_if_cancelled()
    except BaseException:
        for left in handover.leave():
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(unmake, left)
        raise
    return result
