"""What anyio leaves to each event loop: which one is running, who cancels, and how the main thread is interrupted."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from anyio.lowlevel import current_token


def asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """The running asyncio loop; None where the running task is not asyncio's, such as one of trio in guest mode."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return None if asyncio.current_task(loop) is None else loop


def running_loop() -> object:
    """Something that is equal only in one event loop.

    Raises:
        RuntimeError: none runs in this thread.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return current_token()


def is_cancelled_from_outside() -> bool:
    """Whether the running task itself is being cancelled; if not, a CancelledError comes from what it awaited."""
    task = None if asyncio_loop() is None else asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextmanager
def raise_stray_cancellation(author: str) -> Iterator[None]:
    """Raise RuntimeError in place of a CancelledError while nobody cancels the running task: the author's code awaited
    something that was cancelled. Task groups would end the task without an error.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        if is_cancelled_from_outside():
            raise
        raise RuntimeError(f"{author} raised CancelledError: something that it awaited was cancelled") from error


def interrupt_main() -> None:
    """Interrupt the main thread as Ctrl-C would, unless SIGINT has no handler. The signal is sent from the event loop,
    not from this task, since trio would raise KeyboardInterrupt in the task.
    """
    if not callable(signal.getsignal(signal.SIGINT)):
        return
    send = partial(signal.pthread_kill, threading.main_thread().ident or 0, signal.SIGINT)
    if (loop := asyncio_loop()) is not None:
        loop.call_soon(send)
        return
    import trio

    trio.lowlevel.current_trio_token().run_sync_soon(send)
