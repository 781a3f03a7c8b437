"""The contract of a backend: launch a sandbox, open a stream to a program in it, report its state, end it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from anyio.abc import ByteStream

from hermes_exec.config import Limits
from hermes_exec.config.model import volume_parts
from hermes_exec.errors import ConfigError, IsolationError, PostMortem
from hermes_exec.results import IsolationLevel, PullProgress

OWN_EXIT_CODES = (0, 1, 128, 255)
"""Exit codes of a runner that ended by itself, or could not be started."""
SandboxState = Literal["alive", "dead", "unknown"]


def volume_arguments(volumes: Iterable[str], shared_volumes: Iterable[str] = ()) -> list[str]:
    """Return the runner's arguments for mounted volumes. Files there survive resets; all slots write to the shared
    ones.
    """
    arguments = [word for volume in volumes for word in ("--volume", volume_parts(volume)[1])]
    return arguments + [word for volume in shared_volumes for word in ("--shared", volume_parts(volume)[1])]


def network_owner(network_mode: object) -> str | None:
    """Return whose network a container has in this mode of Docker's or Podman's; None: it has a network of its own."""
    mode, _, other = str(network_mode).partition(":")
    if mode == "host":
        return "host"
    return "other container" if mode == "pod" or (mode in {"container", "service", "ns"} and other) else None


@dataclass(frozen=True, slots=True)
class Labels:
    """The owner of a sandbox, so that others can find and end it when the owner is gone."""

    run_id: str
    host_id: str
    """Name of the owner's host, a colon and its machine id; with `boot_id`, one boot of one kernel."""
    boot_id: str
    pid_namespace: str
    """Inode of the pid namespace in which `pid` counts."""
    pid: int
    pid_start: int
    """Start of the owner in clock ticks since boot, so that a reused pid is not taken for the owner."""
    user: str = ""
    """Name of the owner's user on the owner's host."""
    note: str = ""
    """Text of the pool for people."""


RUNNER_PIDS, SLOT_PIDS = 32, 28
"""Threads of the runner (23 measured) and of programs that attach to it (4), and of an agent (26): each slot has one,
and one waits for a slot. They count against the limit of a sandbox too.
"""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """The requirements for a sandbox. Options of a single backend are in that backend's config object."""

    image: str | None = None
    limits: Limits = field(default_factory=Limits)
    best_effort_limits: bool = False
    default_limits: frozenset[str] = frozenset()
    """Names in `limits` that are defaults. They are omitted where they cannot be enforced."""
    network: bool = True
    """False: no network in the whole sandbox. If its slots differ, each slot disables its own network instead."""
    slots: int = 1
    """Number of slots in the sandbox."""
    exclusive: bool = False
    """Whether one slot gets the whole sandbox."""
    own_roots: bool = False
    """Whether the runner must be able to make user namespaces and mounts, so that each slot can have its own root."""
    min_isolation: IsolationLevel = "none"
    """The lowest isolation level of its slots, for backends with a known way around the isolation."""
    lease_s: float = 60.0
    """How long the runner outlives its driver."""
    lifetime_s: float | None = None
    """How long its slots are acquired. Afterwards, the pool ends the sandbox when the last slot is released, so an
    engine that bounds a sandbox's life must allow more.
    """
    pull_timeout_s: float = 600.0
    """Longest time for fetching the image."""
    on_progress: Callable[[PullProgress], None] | None = None

    @property
    def sandbox_pids(self) -> int | None:
        """The process limit of a whole sandbox: for its slots plus the runner itself."""
        return None if self.limits.pids is None else self.limits.pids + RUNNER_PIDS + SLOT_PIDS * (self.slots + 1)


def check_host_sandbox(backend: str, spec: LaunchSpec) -> None:
    """Raise ConfigError for requirements that a process tree of a host cannot meet."""
    if spec.image is not None:
        raise ConfigError(f"the {backend} backend has no images, and image={spec.image!r} was given")
    if spec.limits.total() and not spec.best_effort_limits:
        named = ", ".join(spec.limits.total())
        problem = f"a sandbox of backend {backend!r} cannot be limited ({named})"
        raise ConfigError(f"{problem}: use slot_limits, or best_effort_limits=True")


@dataclass(frozen=True, slots=True)
class ReapFilter:
    """The sandboxes to end: all, one run's, the orphans, or the orphans of one run."""

    run_id: str | None = None
    """Only sandboxes of this run."""
    orphans: bool = False
    """Only orphans: the owner is gone, or the sandbox has ended and its owner's state is unknown."""
    all: bool = False
    """All sandboxes that this library started."""
    retry: bool = False
    """Also sandboxes whose removal has failed before."""


@dataclass(frozen=True, slots=True)
class ReapedSandbox:
    """A sandbox that `Backend.reap` has ended."""

    sandbox: str
    backend: str
    run_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """A sandbox that this library started, with any owner."""

    sandbox: str
    backend: str
    labels: Labels
    owner: Literal["alive", "gone", "unknown"]
    """State of the owner."""
    state: str
    image: str | None = None
    created_at: float | None = None
    ended: bool = False
    """Whether the runner has ended."""
    host: str | None = None
    """Host of the sandbox, for backends with several hosts."""
    left: str | None = None
    """Why a part of it could not be removed. Only `ReapFilter.retry` tries again."""


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """The state of a sandbox. `unknown` (paused, daemon unreachable) never destroys it; `dead` has a post-mortem."""

    state: SandboxState
    post_mortem: PostMortem | None = None
    detail: str = ""


class NoOwnRoot(IsolationError):
    """Raised when the slots of a sandbox cannot have their own roots; the message names the option to set."""


class Sandbox(Protocol):
    """One sandbox."""

    @property
    def id(self) -> str:
        """The backend's own name of the sandbox: a container id, `local-<pid>`."""

    @property
    def user(self) -> str | None:
        """The user of commands in an exclusive sandbox, if the image names one and the runner may become it; else
        None.
        """

    @property
    def workdir(self) -> str | None:
        """The image's WORKDIR (`/` by default); None without an image."""

    @property
    def limits(self) -> Mapping[str, str]:
        """How each limit of the spec is enforced on the sandbox, or `not enforced`."""

    async def open(self, argv: Sequence[str]) -> ByteStream:
        """Start the runner in the sandbox with these arguments, and return a stream of its stdin and stdout.

        The stream must accept writes from any thread without waiting, because keepalives are sent while the event loop
        is busy. `aio.streams.FdStream` does, and `aio.bridge.bridge_calls` makes one from blocking calls. With another
        anyio stream, a loop that is busy for longer than the lease loses the sandbox.

        Raises:
            SandboxDied: If the sandbox has ended.
            ChannelLost: If the sandbox is unreachable; the same call may succeed later.
        """

    async def status(self) -> SandboxStatus:
        """Return whether the sandbox is alive, as seen from outside. Never raises, and may be cancelled.

        This must recognise a death by itself: a lost stream proves nothing, and calls wait for this answer.
        """

    async def destroy(self) -> None:
        """End the sandbox and free its resources. May be called again, also after a failure."""

    def destroy_now(self) -> None:
        """Destroy without an event loop, as the last resort at exit. Errors are ignored."""


class Backend(Protocol):
    """A way to run sandboxes."""

    @property
    def name(self) -> str:
        """The name by which users choose it."""

    @property
    def can_be_exclusive(self) -> bool:
        """Whether its sandboxes are containers or VMs of its own, so that one slot may get a whole sandbox."""

    @property
    def private_root(self) -> bool:
        """Whether slots need a root of their own, because others use the machine whose root the sandbox has."""

    @property
    def readonly_paths(self) -> tuple[str, ...]:
        """Paths of the sandbox that every slot may read besides the system's; only with `private_root`."""

    async def check(self, spec: LaunchSpec) -> None:
        """Check whether `launch` can work, without starting anything.

        Raises:
            BackendUnavailable: If the engine, its client or the credentials are missing.
            ImageError: If the image is missing and may not be fetched.
            ConfigError: If this backend cannot meet the spec.
            NoOwnRoot: If the spec asks for `own_roots`, which are impossible here.
        """

    async def launch(self, spec: LaunchSpec, labels: Labels) -> Sandbox:
        """Start a sandbox with a serving runner. On failure or cancellation nothing is left behind.

        In an exclusive sandbox the runner is process 1. Otherwise its user could trace process 1, or end the sandbox
        with `kill -9 -1`.

        Raises:
            LaunchError: If the sandbox could not be started.
            BackendUnavailable: As for `check`. If it is `retryable`, the engine is away temporarily and requests keep
                waiting.
            ImageError, ConfigError, NoOwnRoot: As for `check`.
        """

    async def reap(self, which: ReapFilter) -> list[ReapedSandbox]:
        """End the sandboxes that match the filter.

        A living sandbox whose owner's state is unknown here is not an orphan; its lease ends it.
        """

    async def sandboxes(self) -> list[SandboxInfo]:
        """Return every existing sandbox that this library started."""

    async def aclose(self) -> None:
        """Free the backend's own resources (connections); sandboxes are not touched."""
