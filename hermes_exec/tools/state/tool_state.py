"""State shared by the tools of one Toolbox: the slot, the shell session, and the files that the model has seen."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from hermes_exec.errors import ConfigError
from hermes_exec.slot.run import OnOutput
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.results import CallOutcome, CallTool
from hermes_exec.tools.catalog.schemas import JsonObject
from hermes_exec.tools.options import ToolOptions
from hermes_exec.tools.state.call_queue import CallQueue
from hermes_exec.tools.state.file_views import FileViews, Repetition
from hermes_exec.tools.state.watch import RateLimit, Watch

if TYPE_CHECKING:
    from hermes_exec.slot.session import Session
    from hermes_exec.slot.slot import Slot


class CodeKernel(Protocol):
    """A Python process that keeps its variables between calls of execute_code."""

    async def end_reason(self, within_s: float = 0) -> str | None:
        """Wait up to `within_s` for the process to end; return the reason, or None while it runs."""

    async def aclose(self) -> None:
        """End the process and everything that it started."""


@dataclass(frozen=True)
class SavedToolState:
    """The state of a Toolbox in a checkpoint of its slot."""

    views: FileViews
    searches: Repetition
    failed_patches: Mapping[str, int]
    return_directory: str | None
    session: Session | None
    had_kernel: bool


@dataclass
class ToolState:
    """The state of one Toolbox. In the slot it owns only its shell session and the Python process of execute_code."""

    slot: Slot
    options: ToolOptions
    tools: frozenset[str] = frozenset()
    views: FileViews = field(default_factory=FileViews)
    searches: Repetition = field(default_factory=Repetition)
    watches: dict[str, Watch] = field(default_factory=dict)
    rate_limit: RateLimit = field(default_factory=RateLimit)
    killed_ids: set[str] = field(default_factory=set)
    failed_patches: dict[str, int] = field(default_factory=dict)
    write_lock: anyio.Lock = field(default_factory=anyio.Lock)
    reads: CallQueue = field(default_factory=CallQueue)
    """The running calls that only read, in order of arrival."""
    return_directory: str | None = None
    """The directory that the session returns to, if the last command had its own. Guarded by `shell`."""
    resets: int = 0
    """The number of resets of the slot when this state was created. After another reset the state is stale."""
    call_tool: CallTool | None = None
    """Executes a call that code makes, as a call of the same Toolbox."""
    code_tools: Mapping[str, JsonObject] = field(default_factory=dict)
    """The tools that code may call, with their schemas."""
    code_calls: int = 0
    """The number of running calls made by code. Their results go to the code in full, and the model has not seen them.
    """
    kernel: CodeKernel | None = None
    kernel_loss: str | None = None
    """Why the previous Python process ended, until a result has reported it."""
    code_lock: anyio.Lock = field(default_factory=anyio.Lock)
    _session: Session | None = None
    _shell_lock: anyio.Lock = field(default_factory=anyio.Lock)

    @asynccontextmanager
    async def shell(self) -> AsyncIterator[Session]:
        """Hold the shell session of this Toolbox exclusively, in order of arrival. The first holder starts it.

        Raises:
            ConfigError: If the slot cannot have a session, for example because it has no shell.
        """
        async with self._shell_lock:
            if self._session is None:
                self._session = self.slot.session()
            await self._session.open()
            yield self._session

    def save(self) -> SavedToolState:
        """Return the part of this state that a checkpoint of the slot holds."""
        return SavedToolState(
            self.views.copy(),
            replace(self.searches),
            dict(self.failed_patches),
            self.return_directory,
            self._session if self._session is not None and self._session.id is not None else None,
            self.kernel is not None,
        )

    def load(self, saved: SavedToolState) -> None:
        """Take over the state of a checkpoint that the slot was set to."""
        self.views, self.searches = saved.views.copy(), replace(saved.searches)
        self.failed_patches = dict(saved.failed_patches)
        if saved.session is not None:
            with suppress(ConfigError):  # it ended before the runner made the checkpoint
                self._session = self.slot.session(like=saved.session)
                self.return_directory = saved.return_directory
        if saved.had_kernel:
            self.kernel_loss = "a checkpoint holds no processes"

    @property
    def cwd(self) -> str:
        """The base of relative paths: the session's directory, so file tools and the terminal resolve paths alike."""
        if self._session is None:
            return self.slot.workdir
        return self.return_directory or self._session.cwd

    def resolve(self, path: str, argument: str = "path") -> str:
        """Return the absolute path for a path of the model.

        Raises:
            ToolFailure: If the path is empty or contains a NUL byte.
        """
        if not path or "\0" in path:
            raise ToolFailure(
                "bad_value", f"'{argument}' is empty." if not path else f"'{argument}' contains a NUL byte."
            )
        if path == "~" or path.startswith("~/"):
            path = self.slot.home + path[1:]
        absolute = posixpath.join(self.cwd, path)
        # The slot resolves `..`, because its meaning depends on links.
        return absolute if ".." in absolute.split("/") else posixpath.normpath(absolute)

    def drop_end_notice(self, session_id: str) -> None:
        """Drop the notice of the end of a background process, because a result has reported it.

        Matches of its watched patterns are still reported.
        """
        watch = self.watches.get(session_id)
        if watch is not None:
            watch.notify_on_complete = False
            if watch.idle:
                del self.watches[session_id]

    async def close_kernel(self) -> None:
        """End the Python process that keeps the variables of execute_code."""
        kernel, self.kernel = self.kernel, None
        if kernel is not None:
            await kernel.aclose()

    async def aclose(self) -> None:
        """Close the session and end the Python process of execute_code. Other processes in the slot keep running."""
        await self.close_kernel()
        session, self._session = self._session, None
        if session is not None:
            await session.aclose()


Tool = Callable[[ToolState, dict[str, Any]], Awaitable[CallOutcome]]
"""A tool that works in the slot. It takes validated arguments and returns a CallOutcome or raises ToolFailure."""

LiveTool = Callable[[ToolState, dict[str, Any], OnOutput | None], Awaitable[CallOutcome]]
"""A tool that also passes its output to a callback while it runs, if there is one."""
