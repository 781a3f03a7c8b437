"""Base of backends whose sandboxes are local processes: find and remove leftovers."""

from __future__ import annotations

import anyio
import anyio.to_thread

from hermes_exec.backends.base import ReapedSandbox, ReapFilter, SandboxInfo
from hermes_exec.backends.capabilities import advise
from hermes_exec.backends.owner import owner_state, reap_reason
from hermes_exec.backends.sandbox_directory import SandboxDirectory, find_directories, parent_directory
from hermes_exec.backends.strict_path import unsafe_reason
from hermes_exec.errors import ConfigError

MAX_CALLS = 32
"""Calls that may run at once; each occupies a thread."""


class HostBackend:
    """Base of a backend whose sandboxes have directories in `base_dir`, with names that begin with `prefix`."""

    name: str

    def __init__(self, base_dir: str | None, prefix: str) -> None:
        self.base_dir = base_dir
        self._prefix = prefix
        self._limiter = anyio.CapacityLimiter(MAX_CALLS)

    async def reap(self, which: ReapFilter) -> list[ReapedSandbox]:
        """See `Backend.reap`."""
        return await anyio.to_thread.run_sync(self._reap, which, limiter=self._limiter)

    def _reap(self, which: ReapFilter) -> list[ReapedSandbox]:
        ended, parent = [], parent_directory(self.base_dir)
        if parent.exists() and (why := unsafe_reason(parent)):
            raise ConfigError(f"leftovers in {parent} are not removed: {why}")
        for directory, info in self._find_sandboxes():
            reason = reap_reason(which, info.labels, info.owner, ended=info.ended, left=info.left is not None)
            if reason is not None:
                directory.end_runner()
                self._remove(directory)
                if not directory.path.exists():
                    ended.append(ReapedSandbox(info.sandbox, self.name, info.labels.run_id, reason))
        return ended

    async def leftovers(self) -> list[str]:
        """See `HasLeftovers.leftovers`."""
        return advise(await self.sandboxes())

    async def sandboxes(self) -> list[SandboxInfo]:
        """See `Backend.sandboxes`."""
        return [info for _, info in await anyio.to_thread.run_sync(self._find_sandboxes, limiter=self._limiter)]

    def _find_sandboxes(self) -> list[tuple[SandboxDirectory, SandboxInfo]]:
        sandboxes: list[tuple[SandboxDirectory, SandboxInfo]] = []
        for directory in find_directories(self.base_dir, self._prefix):
            labels = directory.owner()
            if labels is None:
                continue
            pid = directory.runner_pid()
            info = SandboxInfo(
                sandbox=self._name_of(directory, pid),
                backend=self.name,
                labels=labels,
                owner=owner_state(labels, shared_engine=False),
                state="ended" if pid is None else "running",
                created_at=directory.creation_time(),
                left=directory.removal_failure(),
            )
            sandboxes.append((directory, info))
        return sandboxes

    def _name_of(self, directory: SandboxDirectory, pid: int | None) -> str:
        """Return the name of a sandbox; `pid` is its runner's, if the runner lives."""
        return directory.path.name

    def _remove(self, directory: SandboxDirectory) -> None:
        """Remove the leftovers of a sandbox."""
        directory.remove()

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""
