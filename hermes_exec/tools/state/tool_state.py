"""What the tools of one Toolbox share: the slot, the shell session, and what the model has seen."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.results import CallTool, Outcome
from hermes_exec.tools.catalog.schemas import JsonObject
from hermes_exec.tools.options import ToolOptions
from hermes_exec.tools.state.call_queue import CallQueue
from hermes_exec.tools.state.file_views import FileViews, Repetition
from hermes_exec.tools.state.watch import Rate, Watch

if TYPE_CHECKING:
    from hermes_exec.slot.session import Session
    from hermes_exec.slot.slot import Slot


class CodeKernel(Protocol):
    """A Python that keeps its variables between the calls of execute_code."""

    async def end_reason(self, within_s: float = 0) -> str | None:
        """Why it is there no more; None while it is, after waiting for its end."""

    async def aclose(self) -> None:
        """End it and everything that it left running."""


@dataclass
class ToolState:
    """The state of one Toolbox. It owns nothing in the slot but its shell session and the Python of its code."""

    slot: Slot
    options: ToolOptions
    tools: frozenset[str] = frozenset()
    views: FileViews = field(default_factory=FileViews)
    searches: Repetition = field(default_factory=Repetition)
    watches: dict[str, Watch] = field(default_factory=dict)
    rate: Rate = field(default_factory=Rate)
    killed_ids: set[str] = field(default_factory=set)
    failed_patches: dict[str, int] = field(default_factory=dict)
    write_lock: anyio.Lock = field(default_factory=anyio.Lock)
    reads: CallQueue = field(default_factory=CallQueue)
    """The calls under way that only read, in the order in which they came."""
    return_directory: str | None = None
    """The directory to go back to, when the last command had one of its own. `shell` guards it."""
    resets: int = 0
    """How often the slot had been reset when this state was new: nothing of it holds after the next time."""
    call_tool: CallTool | None = None
    """Carries out a call that code makes, as one of the same Toolbox."""
    code_tools: Mapping[str, JsonObject] = field(default_factory=dict)
    """The tools that code may call, with their schemas."""
    code_calls: int = 0
    """How many of them are under way: code gets each result whole, and what it gets the model has not seen."""
    kernel: CodeKernel | None = None
    kernel_loss: str | None = None
    """Why that of the call before is there no more, if nobody was told."""
    code_lock: anyio.Lock = field(default_factory=anyio.Lock)
    _session: Session | None = None
    _shell_lock: anyio.Lock = field(default_factory=anyio.Lock)

    @asynccontextmanager
    async def shell(self) -> AsyncIterator[Session]:
        """Hold the one shell session of this Toolbox alone, in order of arrival. The first holder starts it.

        Raises:
            ConfigError: the slot can have no session, as without a shell.
        """
        async with self._shell_lock:
            if self._session is None:
                self._session = self.slot.session()
            await self._session.open()
            yield self._session

    @property
    def cwd(self) -> str:
        """Where relative paths start: the session's directory, so that file tools and terminal mean the same file."""
        if self._session is None:
            return self.slot.workdir
        return self.return_directory or self._session.cwd

    def resolve(self, path: str, argument: str = "path") -> str:
        """The absolute path that the model means. Raises ToolFailure for an empty path or one with a NUL byte."""
        if not path or "\0" in path:
            raise ToolFailure(
                "bad_value", f"'{argument}' is empty." if not path else f"'{argument}' contains a NUL byte."
            )
        if path == "~" or path.startswith("~/"):
            path = self.slot.home + path[1:]
        whole = posixpath.join(self.cwd, path)
        # `..` is left to the slot: what it means depends on links.
        return whole if ".." in whole.split("/") else posixpath.normpath(whole)

    async def close_kernel(self) -> None:
        """End the Python that keeps the variables of code."""
        kernel, self.kernel = self.kernel, None
        if kernel is not None:
            await kernel.aclose()

    async def aclose(self) -> None:
        """Let go of the session and of the variables of code. Nothing else that runs in the slot ends."""
        await self.close_kernel()
        session, self._session = self._session, None
        if session is not None:
            await session.aclose()


Tool = Callable[[ToolState, dict[str, Any]], Awaitable[Outcome]]
"""A tool that works in the slot: takes fitted arguments, returns an Outcome or raises ToolFailure."""
