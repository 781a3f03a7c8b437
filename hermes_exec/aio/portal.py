"""One event-loop thread for all blocking pools of a process, and calls into it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, TypeVar, overload

import anyio
from anyio.from_thread import BlockingPortal, BlockingPortalProvider
from anyio.lowlevel import current_token

from hermes_exec.errors import SlotClosed

R = TypeVar("R")


class Portals:
    """One event-loop thread for each process. All pools opened with plain `with` share it; it ends with the last."""

    def __init__(self) -> None:
        self._provider = BlockingPortalProvider()
        self._used = False
        os.register_at_fork(after_in_child=self._reset_after_fork)

    def open(self) -> AbstractContextManager[BlockingPortal]:
        """Return a context manager for the portal. A forked child gets a portal of its own."""
        self._used = True
        return _PortalContext(self._provider)

    def _reset_after_fork(self) -> None:
        """Start again in a child. The parent's portal is never freed, because freeing it would wait for a thread that
        the child does not have.
        """
        if self._used:
            import ctypes

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._provider))
            self._provider, self._used = BlockingPortalProvider(), False


class _PortalContext(AbstractContextManager[BlockingPortal, None]):
    """The portal of a provider. Ctrl-C while it is being entered leaves no thread behind.

    A separate thread enters it: an interrupt inside anyio would leave the loop's thread running forever.
    """

    def __init__(self, provider: BlockingPortalProvider) -> None:
        self._provider = provider

    def __enter__(self) -> BlockingPortal:
        opened: Future[BlockingPortal] = Future()

        def enter() -> None:
            try:
                portal = self._provider.__enter__()
            except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
                opened.set_exception(error)
            else:
                opened.set_result(portal)

        threading.Thread(target=enter, name="hermes-exec-portal", daemon=True).start()
        try:
            return opened.result()
        except BaseException:
            opened.add_done_callback(self._leave)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._provider.__exit__(kind, error, trace)

    def _leave(self, opened: Future[BlockingPortal]) -> None:
        if opened.exception() is None:
            self.__exit__(None, None, None)


@overload
def call(portal: BlockingPortal, work: Callable[[], Awaitable[R]]) -> R: ...
@overload
def call(portal: BlockingPortal, work: Callable[[], R]) -> R: ...
def call(portal: BlockingPortal, work: Callable[[], Any]) -> Any:
    """Run a function in the portal's event loop and return its result. An interrupt here (Ctrl-C) cancels it there.

    Raises:
        SlotClosed: If the loop has ended with the last open pool, or the interpreter is shutting down.
    """
    return _wait_for_result(_start(portal, work))


def _start(portal: BlockingPortal, work: Callable[[], Any]) -> Future[Any]:
    if sys.is_finalizing():
        raise SlotClosed("the program has ended")
    try:
        return portal.start_task_soon(work)
    except RuntimeError:
        if in_event_loop():
            raise
        raise SlotClosed("the pool was closed") from None


def _wait_for_result(future: Future[Any]) -> Any:  # noqa: ANN401 - the result of the work
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def call_or_undo(portal: BlockingPortal, work: Callable[[], Awaitable[R]], undo: Callable[[R], Awaitable[object]]) -> R:
    """Run a function like `call`. If an interrupt comes after the work has returned, call `undo` with its result."""
    results: list[R] = []
    scopes: list[anyio.CancelScope] = []
    ended = anyio.Event()

    async def run() -> R:
        try:
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                results.append(await work())
        finally:
            ended.set()
        return results[0]

    async def clean_up() -> None:
        if not scopes:
            return  # the interrupt came before the work started
        scopes[0].cancel()
        await ended.wait()
        for outcome in results:
            await undo(outcome)

    try:
        result: R = _wait_for_result(_start(portal, run))
    except BaseException:
        with suppress(RuntimeError):  # the loop has ended, and its slots with it
            portal.start_task_soon(clean_up)
        raise
    return result


def in_event_loop() -> bool:
    """Return whether an event loop runs in this thread."""
    try:
        current_token()
    except RuntimeError:
        return False
    return True


def may_leave(pid: int) -> bool:
    """Return whether a context that was entered in process `pid` may be exited here.

    A forked child does not own it. At interpreter shutdown no loop runs, and suspended generators are being closed.
    """
    return pid == os.getpid() and not sys.is_finalizing()
