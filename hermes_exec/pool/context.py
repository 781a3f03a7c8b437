"""The context managers that `pool.slot()` and `pool.slots()` return, for `async with` and for `with`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class SlotContext(AbstractAsyncContextManager[A, bool | None], AbstractContextManager[B, bool | None]):
    """Context manager for acquired slots: `async with`, or `with` (blocking objects) if the pool was entered by `with`.

    Slots are acquired when it is entered.
    """

    def __init__(
        self,
        acquire: Callable[[], Awaitable[A]],
        release: Callable[[A], Awaitable[None]],
        facade: Callable[[], AbstractContextManager[B, bool | None]],
    ) -> None:
        self._acquire, self._release, self._make_facade = acquire, release, facade
        self._acquired: list[A] = []
        self._facade: AbstractContextManager[B, bool | None] | None = None

    async def __aenter__(self) -> A:
        self._acquired.append(await self._acquire())
        return self._acquired[-1]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._release(self._acquired.pop())

    def __enter__(self) -> B:
        self._facade = self._make_facade()
        return self._facade.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._facade is not None
        return self._facade.__exit__(kind, error, trace)

    if not TYPE_CHECKING:  # a type checker reports this mistake by itself

        def __getattr__(self, name: str) -> object:
            raise AttributeError(f"no slot is acquired yet: `async with pool.slot() as slot:`, and then `slot.{name}`")
