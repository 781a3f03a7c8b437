"""How a blocking twin is made of an async object: its methods run in the event loop of one portal thread."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import anyio
from anyio.from_thread import BlockingPortal, BlockingPortalProvider
from anyio.lowlevel import current_token

from hermes_exec.errors import SlotClosed

W = TypeVar("W")
R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")


class Portals:
    """One event loop thread a process, shared by every pool that is open in the blocking way; it ends with the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._provider = BlockingPortalProvider()
        self._of_parents: list[BlockingPortalProvider] = []

    def open(self) -> AbstractContextManager[BlockingPortal]:
        """The portal, for as long as the context lasts. After a fork the child has its own."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid = os.getpid()
                # The end of one that is dropped would wait for a thread that the child does not have.
                self._of_parents.append(self._provider)
                self._provider = BlockingPortalProvider()
            return _Use(self._provider)


class _Use(AbstractContextManager[BlockingPortal, None]):
    """The portal of a provider. An interrupt (Ctrl-C) of who enters it leaves nothing behind.

    Within anyio, it would leave the thread that the loop runs in to be waited for, and nobody to end it.
    """

    def __init__(self, provider: BlockingPortalProvider) -> None:
        self._provider = provider

    def __enter__(self) -> BlockingPortal:
        opened: Future[BlockingPortal] = Future()

        def enter() -> None:
            try:
                portal = self._provider.__enter__()
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
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


class SyncFacade(Generic[W]):
    """Holds the async object (`wrapped`) and the portal to its event loop. Usable from any thread."""

    def __init__(self, wrapped: W, portal: BlockingPortal) -> None:
        self.wrapped = wrapped
        self._portal = portal
        self._pid = os.getpid()

    @property
    def portal(self) -> BlockingPortal:
        """The portal; RuntimeError in another process than its own, where nobody would ever answer."""
        if self._pid != os.getpid():
            raise RuntimeError(f"this pool belongs to process {self._pid}: make one of your own after a fork")
        return self._portal

    def __repr__(self) -> str:
        return f"<blocking {self.wrapped!r}>"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.wrapped is self.wrapped

    def __hash__(self) -> int:
        return id(self.wrapped)


@overload
def call(portal: BlockingPortal, work: Callable[[], Awaitable[R]]) -> R: ...
@overload
def call(portal: BlockingPortal, work: Callable[[], R]) -> R: ...
def call(portal: BlockingPortal, work: Callable[[], Any]) -> Any:
    """Run a function in the portal's loop and wait; an interrupt here (Ctrl-C) cancels it there.

    Raises:
        SlotClosed: the loop has ended with the last pool that was open, or does not run since the interpreter ends.
    """
    return _outcome(_begun(portal, work))


def _begun(portal: BlockingPortal, work: Callable[[], Any]) -> Future[Any]:
    if sys.is_finalizing():
        raise SlotClosed("the program has ended")
    try:
        return portal.start_task_soon(work)
    except RuntimeError:
        if in_event_loop():
            raise
        raise SlotClosed("the pool was closed") from None


def _outcome(future: Future[Any]) -> Any:  # noqa: ANN401 - what the work gives
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def call_or_undo(portal: BlockingPortal, work: Callable[[], Awaitable[R]], undo: Callable[[R], Awaitable[object]]) -> R:
    """As `call`; what the work has given although an interrupt here left nobody to take it is undone."""
    given: list[R] = []
    scopes: list[anyio.CancelScope] = []
    over = anyio.Event()

    async def run() -> R:
        try:
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                given.append(await work())
        finally:
            over.set()
        return given[0]

    async def clean_up() -> None:
        if not scopes:
            return  # the interrupt came before anything was begun
        scopes[0].cancel()
        await over.wait()
        for one in given:
            await undo(one)

    try:
        result: R = _outcome(_begun(portal, run))
    except BaseException:
        with suppress(RuntimeError):  # the loop has ended, and all that was lent in it
            portal.start_task_soon(clean_up)
        raise
    return result


def in_event_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        current_token()
    except RuntimeError:
        return False
    return True


class SyncContext(AbstractContextManager[T, None], Generic[R, T]):
    """An async context as a plain one; what it gives is made into a twin."""

    def __init__(
        self,
        context: AbstractAsyncContextManager[R, bool | None],
        make: Callable[[R, BlockingPortal], T],
        portal: BlockingPortal,
    ) -> None:
        self._context, self._make, self._portal = context, make, portal
        self._pid = os.getpid()

    def __enter__(self) -> T:
        context = self._context

        async def leave(_: R) -> None:
            await context.__aexit__(None, None, None)

        return self._make(call_or_undo(self._portal, context.__aenter__, leave), self._portal)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if may_leave(self._pid):
            call(self._portal, functools.partial(self._context.__aexit__, kind, error, trace))

    if not TYPE_CHECKING:  # which finds the mistake before

        def __getattr__(self, name: str) -> object:
            raise AttributeError(f"{name!r} is not lent yet: `with pool.slot() as slot:`, then `slot.{name}`")


def may_leave(pid: int) -> bool:
    """Whether what was entered in a process can be left here: not by a child that was forked in it, whose it is not,
    and not at the end of the interpreter, when no loop runs any more; what a suspended generator holds is left then.
    """
    return pid == os.getpid() and not sys.is_finalizing()


class Member(Generic[W, R]):
    """A property of a facade with the type of its getter."""

    def __init__(self, get: Callable[[SyncFacade[W]], R], doc: str | None = None) -> None:
        self._get = get
        self.__doc__ = doc

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...
    @overload
    def __get__(self, facade: SyncFacade[W], owner: type) -> R: ...
    def __get__(self, facade: SyncFacade[W] | None, owner: type) -> Self | R:
        return self if facade is None else self._get(facade)


def blocking(method: Callable[Concatenate[W, P], Coroutine[Any, Any, R]]) -> Member[W, Callable[P, R]]:
    """A method of the twin that runs the async method it is made from."""
    return wraps(method, lambda result, _: result)


@overload
def wraps(
    method: Callable[Concatenate[W, P], Coroutine[Any, Any, R]], make: Callable[[R, BlockingPortal], T]
) -> Member[W, Callable[P, T]]: ...
@overload
def wraps(
    method: Callable[Concatenate[W, P], R], make: Callable[[R, BlockingPortal], T]
) -> Member[W, Callable[P, T]]: ...
def wraps(
    method: Callable[Concatenate[W, P], Any], make: Callable[[Any, BlockingPortal], T]
) -> Member[W, Callable[P, T]]:
    """As `blocking`, also of a plain method, which runs in the loop too; the result is made into a twin."""

    def bind(facade: SyncFacade[W]) -> Callable[P, T]:
        wrapped, portal = facade.wrapped, facade.portal

        @functools.wraps(method)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            return make(call(portal, functools.partial(method, wrapped, *args, **kwargs)), portal)

        return run

    return Member(bind, method.__doc__)


def closing(method: Callable[[W], Coroutine[Any, Any, None]]) -> Member[W, Callable[[], None]]:
    """As `blocking`, for what is harmless when repeated, also after the loop has ended with the last pool."""

    def bind(facade: SyncFacade[W]) -> Callable[[], None]:
        wrapped, portal = facade.wrapped, facade.portal

        def run() -> None:
            with suppress(SlotClosed):
                call(portal, functools.partial(method, wrapped))

        return run

    return Member(bind, method.__doc__)


def context(
    method: Callable[Concatenate[W, P], AbstractAsyncContextManager[R, bool | None]],
    make: Callable[[R, BlockingPortal], T],
) -> Member[W, Callable[P, SyncContext[R, T]]]:
    """A context manager of the async object, as `SyncContext`."""

    def bind(facade: SyncFacade[W]) -> Callable[P, SyncContext[R, T]]:
        wrapped, portal = facade.wrapped, facade.portal

        @functools.wraps(method)
        def run(*args: P.args, **kwargs: P.kwargs) -> SyncContext[R, T]:
            return SyncContext(method(wrapped, *args, **kwargs), make, portal)

        return run

    return Member(bind, method.__doc__)
