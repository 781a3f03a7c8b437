"""Task groups that anyio lacks: detached from their block, raising plain errors, shielded from asyncio's cancel."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple

import anyio
from anyio.abc import TaskGroup

from hermes_exec.aio.loop import asyncio_loop

T = TypeVar("T")
Args = TypeVarTuple("Args")


class DetachedTaskGroup:
    """A task group that any task may end.

    An anyio task group must be exited in the task and the cancel scopes that entered it. Fixtures and frameworks that
    open in one task and close in another cannot do that. This group outlives the task that started it, is not cancelled
    with it, and ends with the event loop at the latest. Its tasks must handle their own errors.

    `on_abandoned` is awaited if anything but the owner ends the group, such as a shutdown that cancels all tasks.
    """

    def __init__(self, on_abandoned: Callable[[], Awaitable[None]] | None = None) -> None:
        self._on_abandoned = on_abandoned
        self._tasks: TaskGroup | None = None
        self._started = anyio.Event()
        self._ended = anyio.Event()
        self._host: asyncio.Task[None] | None = None  # an event loop holds its tasks weakly

    async def start(self) -> TaskGroup:
        """Start the group and return it as an anyio task group."""
        self._host = _start_detached(self._run)
        try:
            with anyio.CancelScope(shield=True):
                await self._started.wait()
        except asyncio.CancelledError:  # asyncio's own cancel ignores shields
            if self._host is not None:
                self._host.cancel()
            raise
        return self.tasks

    @property
    def tasks(self) -> TaskGroup:
        """The anyio task group, after `start`."""
        assert self._tasks is not None
        return self._tasks

    def cancel(self) -> None:
        """Cancel all tasks."""
        self._on_abandoned = None
        self.tasks.cancel_scope.cancel()

    async def end(self) -> None:
        """Cancel all tasks and wait until they have ended, even if the caller is cancelled."""
        self.cancel()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as self._tasks:
                self._started.set()
                await anyio.sleep_forever()
        finally:
            try:
                with anyio.CancelScope(shield=True):
                    if self._on_abandoned is not None:
                        await self._on_abandoned()
            finally:
                self._ended.set()


class PlainTaskGroup:
    """A task group that raises the first error of its block or its tasks as it is.

    anyio wraps it in an ExceptionGroup, which callers do not expect.
    """

    def __init__(self) -> None:
        self._tasks = anyio.create_task_group()
        self._failure: Exception | None = None

    @property
    def cancel_scope(self) -> anyio.CancelScope:
        """The cancel scope of the block and all tasks."""
        return self._tasks.cancel_scope

    def start_soon(self, work: Callable[[*Args], Awaitable[object]], *args: *Args) -> None:
        """Start a task of the group."""
        self._tasks.start_soon(self._run, partial(work, *args))

    async def _run(self, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - raised at the end of the group
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self.cancel_scope.cancel()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self._fail(error)
            kind = error = trace = None
        swallowed = await self._tasks.__aexit__(kind, error, trace)
        if self._failure is not None:
            raise self._failure
        return bool(swallowed)


class ShieldedTask:
    """A task that starts at once. Cancelling the waiter cancels the work by an anyio scope and waits for its end.

    An anyio shield does not hold against asyncio's own cancel; this class does.
    """

    def __init__(self, work: Callable[[], Awaitable[object]]) -> None:
        self._work = work
        self._scope = anyio.CancelScope()
        self._done = anyio.Event()
        self._error: BaseException | None = None
        self._task = _start_detached(self._run)

    async def wait(self) -> None:
        """Wait until the work has ended, even if the caller is cancelled, and raise its error."""
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
        except Exception as error:  # noqa: BLE001 - raised by `wait`
            self._error = error
        except asyncio.CancelledError as error:
            self._error = error  # the event loop cancels all tasks
            raise
        finally:
            self._done.set()


async def run_to_end(work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `work`. Its threads have ended when this returns, even if asyncio cancels the caller.

    anyio waits for threads under a shield, which asyncio's own cancel ignores.
    """
    if asyncio_loop() is None:
        return await work()
    results: list[T] = []

    async def keep() -> None:
        results.append(await work())

    await ShieldedTask(keep).wait()
    return results[0]


def _start_detached(work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None] | None:
    if (loop := asyncio_loop()) is not None:
        return loop.create_task(work())
    import trio

    trio.lowlevel.spawn_system_task(work, context=copy_context())
    return None
