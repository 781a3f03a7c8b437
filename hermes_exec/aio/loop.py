"""Functions that differ between event loops: find the running loop, detect cancellation, interrupt the main thread."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from anyio.lowlevel import current_token


def asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running asyncio loop, or None if the running task is not asyncio's (such as one of trio in guest
    mode).
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return None if asyncio.current_task(loop) is None else loop


def running_loop() -> object | None:
    """Return an object that is equal only within one event loop; None if no event loop runs in this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        pass
    try:
        return current_token()
    except RuntimeError:
        return None


def other_loop_error(subject: str) -> RuntimeError:
    """Return the error for the use of `subject` outside the event loop that it belongs to."""
    return RuntimeError(
        f"{subject} belongs to another event loop, the one in which its pool was entered: use it in a task of that "
        "loop, or enter the pool with plain `with` instead of `async with`, which returns objects for every thread"
    )


def is_loop_closed(loop: object) -> bool:
    """Return whether a loop of `running_loop` is closed. A trio loop ends its system tasks itself, and counts as
    running.
    """
    return isinstance(loop, asyncio.AbstractEventLoop) and loop.is_closed()


def is_cancelled_from_outside() -> bool:
    """Return whether the running task itself is being cancelled. If not, a CancelledError comes from something it
    awaited.
    """
    task = None if asyncio_loop() is None else asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextmanager
def raise_stray_cancellation(author: str) -> Iterator[None]:
    """Raise RuntimeError for a CancelledError that no cancellation of the running task explains.

    Such an error means that the author's code awaited something cancelled. Task groups would end the task silently.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        if is_cancelled_from_outside():
            raise
        raise RuntimeError(f"{author} raised CancelledError: something that it awaited was cancelled") from error


def interrupt_main() -> None:
    """Interrupt the main thread as Ctrl-C does, unless SIGINT has no handler.

    The event loop sends the signal, because trio would raise KeyboardInterrupt in the sending task.
    """
    if not callable(signal.getsignal(signal.SIGINT)):
        return
    send = partial(signal.pthread_kill, threading.main_thread().ident or 0, signal.SIGINT)
    if (loop := asyncio_loop()) is not None:
        loop.call_soon(send)
        return
    import trio

    trio.lowlevel.current_trio_token().run_sync_soon(send)
