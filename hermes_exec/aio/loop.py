"""What anyio leaves to each event loop: which one is running, and tasks that belong to no block."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import current_token

T = TypeVar("T")


def asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """The running event loop, where the running task is asyncio's own and not of a guest in that loop."""
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


def cancelled_from_outside() -> bool:
    """Whether the running task is being cancelled; else a CancelledError is of something that it awaited."""
    task = None if asyncio_loop() is None else asyncio.current_task()
    return task is not None and task.cancelling() > 0


class DetachedTaskGroup:
    """A task group that any task may end.

    One that is entered by hand must be left in the task and in the cancel scopes in which it was entered; fixtures and
    frameworks that open in one task and close in another keep to neither. This one outlives the task that started it,
    is not cancelled with it, and ends with the event loop at the latest. What runs in it must handle its own errors.

    `on_abandoned` is awaited when others than its owner ended it: when a shutdown cancels all tasks of the loop.
    """

    def __init__(self, on_abandoned: Callable[[], Awaitable[None]] | None = None) -> None:
        self._on_abandoned = on_abandoned
        self._tasks: TaskGroup | None = None
        self._begun = anyio.Event()
        self._ended = anyio.Event()
        self._host: asyncio.Task[None] | None = None  # an event loop holds its tasks weakly

    async def start(self) -> TaskGroup:
        """Start it, and give the group."""
        self._host = _detached(self._run)
        try:
            with anyio.CancelScope(shield=True):
                await self._begun.wait()
        except asyncio.CancelledError:  # asyncio's own cancel heeds no shield
            if self._host is not None:
                self._host.cancel()
            raise
        return self.tasks

    @property
    def tasks(self) -> TaskGroup:
        """The group, once it was started."""
        assert self._tasks is not None
        return self._tasks

    def cancel(self) -> None:
        """Cancel all tasks."""
        self._on_abandoned = None
        self.tasks.cancel_scope.cancel()

    async def end(self) -> None:
        """Cancel all tasks and wait until they have ended, also when cancelled."""
        self.cancel()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as self._tasks:
                self._begun.set()
                await anyio.sleep_forever()
        finally:
            try:
                with anyio.CancelScope(shield=True):
                    if self._on_abandoned is not None:
                        await self._on_abandoned()
            finally:
                self._ended.set()


class ShieldedTask:
    """Something that is begun at once, in a task of its own: a cancel of who waits for it reaches it as one of anyio's.

    A shield does not hold against asyncio's own cancel; here it does.
    """

    def __init__(self, work: Callable[[], Awaitable[object]]) -> None:
        self._work = work
        self._scope = anyio.CancelScope()
        self._done = anyio.Event()
        self._error: BaseException | None = None
        self._task = _detached(self._run)

    async def wait(self) -> None:
        """Wait for its end, also when cancelled; raise what it raised."""
        try:
            await self._done.wait()
        except anyio.get_cancelled_exc_class():
            self._scope.cancel()
            while not self._done.is_set():
                with anyio.CancelScope(shield=True), contextlib.suppress(asyncio.CancelledError):
                    await self._done.wait()
            raise
        if self._error is not None:
            raise self._error

    async def _run(self) -> None:
        try:
            with self._scope:
                await self._work()
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error
        except asyncio.CancelledError as error:
            self._error = error  # with every other task of the event loop
            raise
        finally:
            self._done.set()


async def run_to_end(work: Callable[[], Awaitable[T]]) -> T:
    """What `work` gives. Threads that it waits for have ended when this ends, also when asyncio cancels the caller.

    anyio waits for threads under a shield, which asyncio's own cancel does not heed.
    """
    if asyncio_loop() is None:
        return await work()
    given: list[T] = []

    async def keep() -> None:
        given.append(await work())

    await ShieldedTask(keep).wait()
    return given[0]


def interrupt_main() -> None:
    """Let the main thread be interrupted as by Ctrl-C, if that does anything here. The event loop itself does it: in a
    task of it trio would raise KeyboardInterrupt there.
    """
    if not callable(signal.getsignal(signal.SIGINT)):
        return
    send = partial(signal.pthread_kill, threading.main_thread().ident or 0, signal.SIGINT)
    if (loop := asyncio_loop()) is not None:
        loop.call_soon(send)
        return
    import trio

    trio.lowlevel.current_trio_token().run_sync_soon(send)


def _detached(work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None] | None:
    if (loop := asyncio_loop()) is not None:
        return loop.create_task(work())
    import trio

    trio.lowlevel.spawn_system_task(work, context=copy_context())
    return None
