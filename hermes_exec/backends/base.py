"""The contract of a backend: launch a sandbox, open a stream to a program in it, tell its state, end it."""

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
"""Exit codes of a runner that ends of its own accord, or could not be started."""
SandboxState = Literal["alive", "dead", "unknown"]


def volume_arguments(volumes: Iterable[str], shared_volumes: Iterable[str] = ()) -> list[str]:
    """Return the arguments of a runner for what the configuration mounts: what slots leave there stays, and all slots
    write to those that are shared.
    """
    arguments = [word for volume in volumes for word in ("--volume", volume_parts(volume)[1])]
    return arguments + [word for volume in shared_volumes for word in ("--shared", volume_parts(volume)[1])]


@dataclass(frozen=True, slots=True)
class Labels:
    """Who owns a sandbox, so that it can be found and ended when the owner is gone.

    `host_id` and `boot_id` name one boot of one kernel, `pid_namespace` is the inode of the pid namespace in
    which `pid` counts, and `pid_start` is the start of that process in clock ticks since boot, so that a pid that
    was given out again is not taken for the owner.
    """

    run_id: str
    host_id: str
    boot_id: str
    pid_namespace: str
    pid: int
    pid_start: int


RUNNER_PIDS, SLOT_PIDS = 32, 28
"""Threads of the runner (23 measured) with what attaches to it (4), and of a slot's agent (26), which count against the
limit of a sandbox too."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What a sandbox has to be. Everything that only one backend understands is in that backend's config object.

    `default_limits` names those of `limits` that nobody asked for: they are left out where they cannot be enforced.
    `slots` is how many there can be in it; `exclusive` is set when one slot gets the whole sandbox. `network`
    False asks for a sandbox without any network; with several slots that differ, the slots close it themselves.
    `own_roots` asks for a sandbox whose runner may make user namespaces and mount in them, so that its slots can have
    roots of their own. `lifetime_s` is how long its slots are lent, after which the pool ends it when the last one
    comes back: an engine that bounds the life of a sandbox is to give it more. `pull_timeout_s` bounds the fetching
    of the image alone. `lease_s` is how long the runner outlives its driver. `min_isolation` is what its slots are
    to reach at least, for a backend that knows of a way around it.
    """

    image: str | None = None
    limits: Limits = field(default_factory=Limits)
    best_effort_limits: bool = False
    default_limits: frozenset[str] = frozenset()
    network: bool = True
    slots: int = 1
    exclusive: bool = False
    own_roots: bool = False
    min_isolation: IsolationLevel = "none"
    lease_s: float = 60.0
    lifetime_s: float | None = None
    pull_timeout_s: float = 600.0
    on_progress: Callable[[PullProgress], None] | None = None

    @property
    def sandbox_pids(self) -> int | None:
        """The limit of processes for a whole sandbox: that of its tenants, and what the runner itself takes."""
        return None if self.limits.pids is None else self.limits.pids + RUNNER_PIDS + SLOT_PIDS * self.slots


def check_host_sandbox(backend: str, spec: LaunchSpec) -> None:
    """Raise ConfigError for what a sandbox cannot have that is a process tree of a host."""
    if spec.image is not None:
        raise ConfigError(f"the {backend} backend has no images, and image={spec.image!r} was given")
    if spec.limits.total() and not spec.best_effort_limits:
        named = ", ".join(spec.limits.total())
        problem = f"a sandbox of backend {backend!r} cannot be limited ({named})"
        raise ConfigError(f"{problem}: use slot_limits, or best_effort_limits=True")


@dataclass(frozen=True, slots=True)
class ReapFilter:
    """Which sandboxes to end: `all` that this library started, those of one run, `orphans`, whose owner is gone or
    that have ended while nothing is known of it, or both: the orphans of one run. `retry`: also what could not be
    removed before.
    """

    run_id: str | None = None
    orphans: bool = False
    all: bool = False
    retry: bool = False


@dataclass(frozen=True, slots=True)
class ReapedSandbox:
    """A sandbox that was ended by `Backend.reap`."""

    sandbox: str
    backend: str
    run_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """A sandbox that this library started, whoever owns it; `owner` says whether the owner still lives, `ended`
    that its runner does not. `host` is where it is, for backends that have several hosts. `left` says why something
    of it could not be removed, which nobody tries again unless asked to.
    """

    sandbox: str
    backend: str
    labels: Labels
    owner: Literal["alive", "gone", "unknown"]
    state: str
    image: str | None = None
    created_at: float | None = None
    ended: bool = False
    host: str | None = None
    left: str | None = None


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """The state of a sandbox: `unknown` (paused, daemon unreachable) never destroys it, `dead` has a
    post-mortem.
    """

    state: SandboxState
    post_mortem: PostMortem | None = None
    detail: str = ""


class NoOwnRoot(IsolationError):
    """Raised when the slots of a sandbox cannot have roots of their own; the message says what to set."""


class Sandbox(Protocol):
    """One sandbox."""

    @property
    def id(self) -> str:
        """The backend's own name of the sandbox: a container id, `local-<pid>`."""

    @property
    def user(self) -> str | None:
        """The user that commands of a whole sandbox run as, when the image names one and the runner may become it; else
        None.
        """

    @property
    def workdir(self) -> str | None:
        """The image's WORKDIR (`/` where it names none); None where there is no image."""

    @property
    def limits(self) -> Mapping[str, str]:
        """How each limit of the spec is enforced on the sandbox, or `not enforced`."""

    async def open(self, argv: Sequence[str]) -> ByteStream:
        """Start the runner in the sandbox with these arguments and give its stdin and stdout.

        The stream takes writes from any thread without waiting, for keepalives are sent while the event loop is busy:
        `aio.streams.FdStream` is one, and `aio.bridge.bridge_calls` makes one of blocking calls. With another anyio
        stream a loop that is busy for longer than the lease loses the sandbox.

        Raises:
            SandboxDied: the sandbox has ended.
            ChannelLost: the sandbox cannot be reached now; the same call may work later.
        """

    async def status(self) -> SandboxStatus:
        """Tell whether the sandbox is alive, as seen from outside it. Never raises, and may be cancelled.

        It recognises a death itself: a lost stream alone says nothing, and calls wait for what is said here.
        """

    async def destroy(self) -> None:
        """End the sandbox and free everything that it held. May be called again, also after a failure."""

    def destroy_now(self) -> None:
        """The same without an event loop, as the last resort at exit; errors are swallowed."""


class Backend(Protocol):
    """A way to run sandboxes."""

    @property
    def name(self) -> str:
        """The name by which users choose it."""

    @property
    def can_be_exclusive(self) -> bool:
        """Whether its sandboxes are containers or VMs that it makes, so that one tenant may have all of one."""

    @property
    def private_root(self) -> bool:
        """Whether slots need a root of their own, because the sandbox's root is a machine that others use."""

    @property
    def readonly_paths(self) -> tuple[str, ...]:
        """Paths of the sandbox that every slot may read besides what the system needs; with `private_root` only."""

    async def check(self, spec: LaunchSpec) -> None:
        """Find out, without starting anything, whether `launch` can work.

        Raises:
            BackendUnavailable: the engine, its client or the credentials are missing.
            ImageError: the image is not there and may not be fetched.
            ConfigError: the spec asks for what this backend cannot give.
            NoOwnRoot: it asks for `own_roots`, which cannot be had here.
        """

    async def launch(self, spec: LaunchSpec, labels: Labels) -> Sandbox:
        """Start a sandbox with a serving runner. When it fails or is cancelled nothing is left.

        In a whole sandbox the runner is process 1. Else its tenant could trace what is, or end the sandbox with `kill
        -9 -1`.

        Raises:
            LaunchError: the sandbox could not be started.
            BackendUnavailable: as for `check`; one that is `retryable` says that the engine is away for now, and
                whoever waits for the sandbox goes on waiting.
            ImageError, ConfigError, NoOwnRoot: as for `check`.
        """

    async def reap(self, which: ReapFilter) -> list[ReapedSandbox]:
        """End the sandboxes that the filter names. One that lives, and whose owner cannot be judged from here, is not
        an
        orphan: its lease ends it.
        """

    async def sandboxes(self) -> list[SandboxInfo]:
        """Every sandbox that this library started and that still exists."""

    async def aclose(self) -> None:
        """Free what the backend itself holds (connections); sandboxes are not touched."""
