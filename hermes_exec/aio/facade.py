"""Blocking forms of async objects: their methods run in the event loop of a portal."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from anyio.from_thread import BlockingPortal

from hermes_exec.aio.portal import call, call_or_undo, may_leave
from hermes_exec.errors import SlotClosed

W = TypeVar("W")
W_co = TypeVar("W_co", covariant=True)
R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")


class SyncFacade(Generic[W_co]):
    """A blocking form of `wrapped`, an async object in the portal's event loop. Usable from any thread."""

    def __init__(self, wrapped: W_co, portal: BlockingPortal) -> None:
        self.wrapped = wrapped
        self._portal = portal
        self._pid = os.getpid()

    @property
    def portal(self) -> BlockingPortal:
        """The portal.

        Raises:
            RuntimeError: If this process is a fork, in which the event loop does not run.
        """
        if self._pid != os.getpid():
            raise RuntimeError(f"this pool belongs to process {self._pid}: make one of your own after a fork")
        return self._portal

    def run_async(self, work: Callable[[], Awaitable[R]]) -> R:
        """Run async work in the event loop and return its result. An interrupt in this thread cancels the work."""
        return call(self.portal, work)

    def __repr__(self) -> str:
        return f"<blocking {self.wrapped!r}>"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.wrapped is self.wrapped

    def __hash__(self) -> int:
        return id(self.wrapped)


class SyncContext(AbstractContextManager[T, None], Generic[R, T]):
    """A blocking form of an async context manager. `make` converts its value to a blocking form."""

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

    if not TYPE_CHECKING:  # a type checker reports the mistake itself

        def __getattr__(self, name: str) -> object:
            raise AttributeError(f"{name!r} is not acquired yet: `with pool.slot() as slot:`, then `slot.{name}`")


class FacadeMember(Generic[W, R]):
    """A member of a facade, read like a property; it has the type of its getter."""

    def __init__(self, get: Callable[[SyncFacade[W]], R], doc: str | None = None) -> None:
        self._get = get
        self.__doc__ = doc

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...
    @overload
    def __get__(self, facade: SyncFacade[W], owner: type) -> R: ...
    def __get__(self, facade: SyncFacade[W] | None, owner: type) -> Self | R:
        return self if facade is None else self._get(facade)


def blocking(method: Callable[Concatenate[W, P], Coroutine[Any, Any, R]]) -> FacadeMember[W, Callable[P, R]]:
    """Make a blocking method that runs an async one."""
    return wraps(method, lambda result, _: result)


@overload
def wraps(
    method: Callable[Concatenate[W, P], Coroutine[Any, Any, R]],
    make: Callable[[R, BlockingPortal], T],
    undo: Callable[[W, R], Awaitable[object]] | None = None,
) -> FacadeMember[W, Callable[P, T]]: ...
@overload
def wraps(
    method: Callable[Concatenate[W, P], R], make: Callable[[R, BlockingPortal], T]
) -> FacadeMember[W, Callable[P, T]]: ...
def wraps(
    method: Callable[Concatenate[W, P], Any],
    make: Callable[[Any, BlockingPortal], T],
    undo: Callable[[W, Any], Awaitable[object]] | None = None,
) -> FacadeMember[W, Callable[P, T]]:
    """Make a blocking method from an async or plain one, which runs in the event loop.

    `make` converts the result to its blocking form. If an interrupt comes first, `undo` receives the result instead.
    """

    def bind(facade: SyncFacade[W]) -> Callable[P, T]:
        wrapped, portal = facade.wrapped, facade.portal

        @functools.wraps(method)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            work = functools.partial(method, wrapped, *args, **kwargs)
            if undo is None:
                return make(call(portal, work), portal)
            return make(call_or_undo(portal, work, functools.partial(undo, wrapped)), portal)

        return run

    return FacadeMember(bind, method.__doc__)


def closing(method: Callable[[W], Coroutine[Any, Any, None]]) -> FacadeMember[W, Callable[[], None]]:
    """Make a blocking method that may be called again, and does nothing after the event loop has ended."""

    def bind(facade: SyncFacade[W]) -> Callable[[], None]:
        wrapped, portal = facade.wrapped, facade.portal

        def run() -> None:
            with suppress(SlotClosed):
                call(portal, functools.partial(method, wrapped))

        return run

    return FacadeMember(bind, method.__doc__)


def context(
    method: Callable[Concatenate[W, P], AbstractAsyncContextManager[R, bool | None]],
    make: Callable[[R, BlockingPortal], T],
) -> FacadeMember[W, Callable[P, SyncContext[R, T]]]:
    """Make a method that returns the async object's context manager as a `SyncContext`."""

    def bind(facade: SyncFacade[W]) -> Callable[P, SyncContext[R, T]]:
        wrapped, portal = facade.wrapped, facade.portal

        @functools.wraps(method)
        def run(*args: P.args, **kwargs: P.kwargs) -> SyncContext[R, T]:
            return SyncContext(method(wrapped, *args, **kwargs), make, portal)

        return run

    return FacadeMember(bind, method.__doc__)
