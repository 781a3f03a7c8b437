"""The blocking face of a Toolbox: the same names and arguments, values instead of awaitables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from anyio.from_thread import BlockingPortal

from hermes_exec.aio.portal import call
from hermes_exec.tools.call.results import ToolResult
from hermes_exec.tools.state.watch import Notice
from hermes_exec.tools.toolbox import Toolbox


class BlockingToolbox(Toolbox):
    """What `Toolbox(slot)` gives for a blocking slot. `wrapped` is the Toolbox that does the work, `portal` the
    thread that it works in.
    """

    wrapped: Toolbox
    portal: BlockingPortal

    @classmethod
    def over(cls, toolbox: Toolbox, portal: BlockingPortal) -> BlockingToolbox:
        """The blocking face of `toolbox`, whose calls run in the event loop of `portal`."""
        made = object.__new__(cls)
        made.wrapped, made.portal = toolbox, portal
        made._schemas, made.unavailable = toolbox._schemas, toolbox.unavailable
        return made

    def call(  # type: ignore[override]
        self, name: str, arguments: str | bytes | Mapping[str, object] | None = None, call_id: str | None = None
    ) -> ToolResult:
        """As `Toolbox.call`."""
        return call(self.portal, partial(self.wrapped.call, name, arguments, call_id))

    def fit_turn(self, results: Sequence[ToolResult], limit_chars: int | None = None) -> list[ToolResult]:  # type: ignore[override]
        """As `Toolbox.fit_turn`."""
        return call(self.portal, partial(self.wrapped.fit_turn, results, limit_chars))

    def notices(self) -> list[Notice]:  # type: ignore[override]
        """As `Toolbox.notices`."""
        return call(self.portal, self.wrapped.notices)

    def forget_reads(self) -> None:
        """As `Toolbox.forget_reads`."""
        call(self.portal, self.wrapped.forget_reads)

    def close(self) -> None:
        """As `Toolbox.aclose`."""
        call(self.portal, self.wrapped.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
