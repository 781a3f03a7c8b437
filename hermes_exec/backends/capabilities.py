"""Optional abilities of backends and sandboxes: a protocol for each, recognised by its methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from hermes_exec.backends.base import LaunchSpec, SandboxInfo


@runtime_checkable
class HostVisible(Protocol):
    """A sandbox whose processes may be visible on this host."""

    def host_pid(self) -> int | None:
        """Return the pid of the serving runner on this host, or None if it runs elsewhere; blocking.

        Raises:
            ExecError: If the engine does not answer.
        """


@runtime_checkable
class Signalable(Protocol):
    """A sandbox whose runner accepts signals from outside, for tests of failures."""

    def signal_now(self, number: int) -> None:
        """Send a signal (KILL, STOP, CONT) as an accident would, without notice to the runner; blocking.

        Raises:
            ExecError: If the engine or the host does not answer.
        """


@runtime_checkable
class HasDeadline(Protocol):
    """A sandbox that its engine ends at a known time. Shortly before, its slots are no longer acquired."""

    @property
    def ends_at(self) -> float:
        """That time, on the clock of `time.monotonic()`."""


@runtime_checkable
class HasImageID(Protocol):
    """A sandbox whose engine has an id for the contents of its image, which its name alone does not determine."""

    @property
    def image_id(self) -> str:
        """The id; sandboxes with the same id have the same image."""


@runtime_checkable
class HasRoomHint(Protocol):
    """A sandbox whose files may have less room than a disk."""

    @property
    def room_hint(self) -> str:
        """What bounds the room, and how to get more, for errors of full disks; "" if only a disk does."""


@runtime_checkable
class MayBeDrained(Protocol):
    """A sandbox whose engine may take its machine out of service. From then on, its slots are no longer acquired."""

    async def is_draining(self) -> bool:
        """Return whether the engine is about to end the sandbox, or has begun to drain its machine.

        Never raises: without an answer of the engine, it is False.
        """


@runtime_checkable
class HasSlotCount(Protocol):
    """A sandbox that may have another number of slots than the pool asked for. An exclusive sandbox never has."""

    @property
    def slots(self) -> int | None:
        """The number of slots; None for the pool's."""


@runtime_checkable
class HasGPUs(Protocol):
    """A backend whose slots may use GPUs of the machine on which they are."""

    @property
    def gpus(self) -> Mapping[str, object] | None:
        """The parameter `gpus` of `slot.create`; None for no GPUs."""

    async def gpu_sizes(self, sandboxes: int, slots: int | None) -> Mapping[int, int] | None:
        """Return the sizes of so many sandboxes, as `BackendConfig.sizes`, if each slot has its own GPUs; else None.

        `slots` is the configured number of slots in a sandbox; None for as many as the GPUs allow. Called after
        `Backend.check`.

        Raises:
            ConfigError: If there are too few GPUs for these slots.
        """


@runtime_checkable
class HasBaseDirectory(Protocol):
    """A backend whose sandboxes have their files on this host, below `base_dir` of its configuration."""

    @property
    def base_dir(self) -> str | None:
        """The directory; None for the system's temporary one."""


@runtime_checkable
class CanPrefetch(Protocol):
    """A backend that can fetch, build or convert an image before a sandbox is launched."""

    async def prefetch(self, spec: LaunchSpec) -> None:
        """Prepare the image of the spec within its `pull_timeout_s`, reporting to `on_progress`.

        Failure or cancellation leaves nothing half done. The rest of the spec does not matter.

        Raises:
            LaunchTimeout: If it took longer.
            BackendUnavailable, ImageError, ConfigError: As for `Backend.check`.
        """


@runtime_checkable
class HasTrialImage(Protocol):
    """A backend that can make a minimal image for a trial, without a registry, and remove it again."""

    def trial_image(self) -> AbstractAsyncContextManager[tuple[str, list[str]]]:
        """Return a context manager that makes an image with nothing but the runner, and a trivial command for it.

        Raises:
            BackendUnavailable: If the engine for the image is unreachable.
        """


@runtime_checkable
class HasRemarks(Protocol):
    """A backend with remarks on its engine for users."""

    async def remarks(self) -> list[str]:
        """Return the remarks for `hermes-exec doctor`.

        Raises:
            BackendUnavailable: If the engine does not answer.
        """


@runtime_checkable
class HasLeftovers(Protocol):
    """A backend that records failed removals, and tries again only on request."""

    async def leftovers(self) -> list[str]:
        """Return a line for each failed removal, with its reason and the remedy.

        Raises:
            BackendUnavailable: If the engine does not answer.
        """


def advice(backend: str, what: str) -> str:
    """Return the remedy for a failed removal."""
    return f"{backend} cannot remove {what}; `hermes-exec reap --orphans -b {backend}` tries it again"


def advise(sandboxes: Iterable[SandboxInfo]) -> list[str]:
    """Return a line for each sandbox with a failed removal."""
    return [f"{advice(each.backend, each.sandbox)}: {each.left}" for each in sandboxes if each.left is not None]
