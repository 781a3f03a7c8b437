"""The blocking face of a Toolbox: the same names and arguments, values instead of awaitables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hermes_exec.tools.host import HostTool
from hermes_exec.tools.options import ToolOptions
from hermes_exec.tools.results import ToolResult
from hermes_exec.tools.toolbox import Toolbox
from hermes_exec.tools.watch import Notice

if TYPE_CHECKING:
    import hermes_exec.blocking


class BlockingToolbox(Toolbox):
    """What `Toolbox(slot)` gives for a blocking slot. `wrapped` is the Toolbox that does the work, `portal` the
    thread that it works in.
    """

    def __init__(
        self,
        slot: hermes_exec.blocking.Slot,
        toolsets: Iterable[str] | None = None,
        *,
        tools: Iterable[str | HostTool] | None = None,
        options: ToolOptions | None = None,
    ) -> None:
        self.portal = slot.portal
        self.wrapped: Toolbox = Toolbox(slot.wrapped, toolsets, tools=tools, options=options)
        self._schemas = self.wrapped._schemas
        self.unavailable = self.wrapped.unavailable

    def call(  # type: ignore[override]
        self, name: str, arguments: str | bytes | Mapping[str, object] | None = None, call_id: str | None = None
    ) -> ToolResult:
        """As `Toolbox.call`."""
        return self.portal.call(self.wrapped.call, name, arguments, call_id)

    def fit_turn(self, results: Sequence[ToolResult], limit_chars: int | None = None) -> list[ToolResult]:  # type: ignore[override]
        """As `Toolbox.fit_turn`."""
        return self.portal.call(self.wrapped.fit_turn, results, limit_chars)

    def notices(self) -> list[Notice]:  # type: ignore[override]
        """As `Toolbox.notices`."""
        return self.portal.call(self.wrapped.notices)

    def forget_reads(self) -> None:
        """As `Toolbox.forget_reads`."""
        self.portal.call(self.wrapped.forget_reads)

    def close(self) -> None:
        """As `Toolbox.aclose`."""
        self.portal.call(self.wrapped.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
