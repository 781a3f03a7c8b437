"""Calls of functions that may never return, in threads that do not keep the program from ending."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Generic, TypeVar

import anyio
import anyio.from_thread
from anyio.lowlevel import current_token

T = TypeVar("T")


class _Outcome(Generic[T]):
    """The result of a call, or the exception that it raised."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._results: list[T] = []
        self._error: BaseException | None = None
        try:
            self._results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised in the task that waits
            self._error = error

    def get(self) -> T:
        """Return the result, or raise the exception."""
        if self._error is not None:
            raise self._error
        return self._results[0]


async def call_in_daemon_thread(function: Callable[[], T]) -> T:
    """Call a function of the user in a thread of its own, and return its result.

    If the caller is cancelled, the thread is abandoned: nothing waits for it, also not the end of the program. A thread
    of anyio would keep the program from ending, and would occupy one of the 40 threads that all blocking work shares.

    Raises:
        BaseException: What the function raises.
    """
    outcomes: list[_Outcome[T]] = []
    ended, token, context = anyio.Event(), current_token(), copy_context()

    def work() -> None:
        outcomes.append(_Outcome(lambda: context.run(function)))
        with contextlib.suppress(RuntimeError):  # the loop has ended
            anyio.from_thread.run_sync(ended.set, token=token)

    threading.Thread(target=work, name="hermes-exec-call", daemon=True).start()
    await ended.wait()
    return outcomes[0].get()
