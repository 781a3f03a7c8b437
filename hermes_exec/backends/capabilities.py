"""What some backends and sandboxes can do beyond the contract: a protocol for each, recognised by its methods."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from hermes_exec.backends.base import LaunchSpec, SandboxInfo


@runtime_checkable
class HostVisible(Protocol):
    """A sandbox whose processes this host may see."""

    def host_pid(self) -> int | None:
        """The pid of the serving runner on this host, None where it is not of this host; blocking.

        Raises:
            ExecError: the engine cannot be asked.
        """


@runtime_checkable
class Signalable(Protocol):
    """A sandbox whose runner can be sent signals from outside, for tests of what comes of it."""

    def signal_now(self, number: int) -> None:
        """Send a signal (KILL, STOP, CONT) as an accident would, without a word to the runner; blocking.

        Raises:
            ExecError: the engine or the host cannot be asked.
        """


@runtime_checkable
class HasDeadline(Protocol):
    """A sandbox that its engine ends at a time that is known; shortly before, its slots are not lent any more."""

    @property
    def ends_at(self) -> float:
        """When, on the clock of `time.monotonic()`."""


@runtime_checkable
class HasSlotCount(Protocol):
    """A sandbox that may have another number of slots than the pool asked for; never one that a tenant gets whole."""

    @property
    def slots(self) -> int | None:
        """How many; None for what the pool says."""


@runtime_checkable
class HasBaseDirectory(Protocol):
    """A backend whose sandboxes have their files on this host, in directories below `base_dir` of its
    configuration.
    """

    @property
    def base_dir(self) -> str | None:
        """The directory; None for the system's temporary one."""


@runtime_checkable
class CanPrefetch(Protocol):
    """A backend that can make an image ready, by fetching, building or converting it, before a sandbox is launched."""

    async def prefetch(self, spec: LaunchSpec) -> None:
        """Make the image of the spec ready within its `pull_timeout_s`, telling `on_progress`; nothing half done is
        left when it fails or is cancelled. The rest of the spec does not matter.

        Raises:
            LaunchTimeout: it took longer.
            BackendUnavailable, ImageError, ConfigError: as for `Backend.check`.
        """


@runtime_checkable
class HasTrialImage(Protocol):
    """A backend that can make an image for a trial: minimal, from no registry, and removed again."""

    def trial_image(self) -> AbstractAsyncContextManager[tuple[str, list[str]]]:
        """An image that holds nothing but the runner, and a command that does next to nothing in it.

        Raises:
            BackendUnavailable: the engine that would hold the image cannot be reached.
        """


@runtime_checkable
class HasRemarks(Protocol):
    """A backend that knows what its user should know of an engine."""

    async def remarks(self) -> list[str]:
        """What that is, for `hermes-exec doctor`.

        Raises:
            BackendUnavailable: the engine cannot be asked.
        """


@runtime_checkable
class HasLeftovers(Protocol):
    """A backend that knows what it could not remove, and does not try again unless it is asked to."""

    async def leftovers(self) -> list[str]:
        """What that is, why, and what to do, a line for each.

        Raises:
            BackendUnavailable: the engine cannot be asked.
        """


def advice(backend: str, what: str) -> str:
    """Say what to do about something that a backend could not remove."""
    return f"{backend} cannot remove {what}; `hermes-exec reap --orphans -b {backend}` tries it again"


def advise(sandboxes: Iterable[SandboxInfo]) -> list[str]:
    """Return a line for each sandbox of which something could not be removed."""
    return [f"{advice(each.backend, each.sandbox)}: {each.left}" for each in sandboxes if each.left is not None]
