"""Calls into the pool's event loop that an interrupt of hermes-agent ends."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from concurrent.futures import wait
from typing import TYPE_CHECKING, TypeVar

import anyio
from tools.environments.base import touch_activity_if_due
from tools.interrupt import is_interrupted

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

T = TypeVar("T")
POLL_S = 0.1
END_S = 15.0
"""Longest wait for the end of a cancelled command; the library needs at most 5 s."""


class Interrupted(Exception):
    """Raised when the user interrupted the turn. The command has ended."""


def run_interruptibly(portal: BlockingPortal, work: Callable[[], Awaitable[T]], label: str) -> T:
    """Run `work` in the event loop and return its result. Report activity to hermes-agent meanwhile.

    hermes-agent's interrupt is a flag of the calling thread that nothing can wait for: it is polled.

    Raises:
        Interrupted: If the flag was set before `work` ended.
    """
    scopes: list[anyio.CancelScope] = []

    async def run() -> T:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            return await work()
        raise _interruption()

    future = portal.start_task_soon(run)
    now = time.monotonic()
    activity = {"last_touch": now, "start": now}
    try:
        while not wait([future], timeout=POLL_S).done:
            touch_activity_if_due(activity, label)
            if is_interrupted():
                raise _interruption()
    except BaseException:
        portal.start_task_soon(_cancel, scopes)
        wait([future], timeout=END_S)
        raise
    return future.result()


def _interruption() -> Interrupted:
    return Interrupted("the turn was interrupted")


async def _cancel(scopes: list[anyio.CancelScope]) -> None:
    for scope in scopes:
        scope.cancel()
