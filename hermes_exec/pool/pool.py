"""The pool of sandboxes: the entry point of the library, which hands out slots."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio

from hermes_exec.checks import validate_count
from hermes_exec.errors import ConfigError, ExecError
from hermes_exec.pool.context import SlotContext
from hermes_exec.pool.request import SlotRequest

if TYPE_CHECKING:
    from pathlib import Path

    import hermes_exec.blocking
    from hermes_exec.config import BackendConfig, Limits, PoolConfig, ProfileConfig
    from hermes_exec.config.browser import BrowserConfig
    from hermes_exec.pool.events import Events, OnEvent
    from hermes_exec.pool.launch import OnPull
    from hermes_exec.pool.running import RunningPool
    from hermes_exec.pool.templates import Templates
    from hermes_exec.results import Abilities, IsolationLevel, PoolStats, SlotRoot
    from hermes_exec.slot.checkpoint import AnyCheckpoint, Checkpoint
    from hermes_exec.slot.slot import AnySlot, Slot
    from hermes_exec.tracing import Tracer

# Not the obvious code: see docs/why-not-obvious.md ("Imports at first use"). Modules for creating and running a pool
# are imported when needed, because every program waits for the imports of this one.
# Without logging set up, a program gets nothing on stderr: events and exceptions report everything that matters.
logging.getLogger("hermes_exec").addHandler(logging.NullHandler())
T = TypeVar("T")
ConfigSource = str | os.PathLike[str] | Mapping[str, Any]
NO_CONFIGURATION = frozenset({"self", "backend", "on_event", "on_pull", "trace", "_needs_image", "backend_options"})
"""Arguments of a pool that are not fields of its PoolConfig."""


class SandboxPool:
    """Sandboxes of one backend, and the slots in them. Nothing is started before the pool is entered.

    `async with SandboxPool("docker", image="python:3.12-slim") as pool:` enters this pool, plain `with` its blocking
    form. Times are in seconds.

    Args:
        backend: A name (`local`, `docker`, or one of the entry-point group `hermes_exec.backends`) or a config object.
        image: Image of the sandboxes, for backends that have images.
        slots_per_sandbox: Slots in one sandbox (local and ssh 64, nomad and modal 8, others 1), at most 10,000. With 1
            in a container, the holder of the slot has the whole sandbox.
        min_sandboxes: Minimum number of sandboxes to keep. Entering the pool waits for them; with 0 it checks the
            backend and starts nothing.
        max_sandboxes: Maximum number of sandboxes over all profiles and images (local 1, ssh one per host, others 4).
        profiles: Variants by name: a `ProfileConfig` or a mapping. A profile inherits the settings that it leaves out.
        min_isolation: The lowest accepted level (`none`, `landlock`, `uid`, `namespaces`, `exclusive`). None:
            `landlock`. A slot always gets the highest level that the sandbox supports.
        network: False disables the network.
        limits: Limits of a sandbox.
        slot_limits: Limits of a slot. The default is 1,024 processes (`pids=None` lifts it). Memory has no default:
            without a limit, one slot can take all memory of its sandbox, or of the host.
        best_effort_limits: True lists a limit that cannot be enforced in `slot.isolation.limits`; False refuses it.
        env: Variables of every slot.
        secrets: Secret variables of every slot; never shown or stored outside of it.
        files: Path in the slot → bytes or local path, written into each slot when it is acquired.
        setup: Shell commands that run once per sandbox, with the rights of its runner. Every slot sees their changes to
            the sandbox, but not those to their own home, workspace and tmp. On local, where the sandbox is this
            machine, they may only inspect it: a command that leaves files is a ConfigError.
        slot_setup: Shell commands that run in a slot each time it is acquired. A command of `setup` or `slot_setup`
            that fails is a LaunchError.
        browser: Rules for the browser tools in each slot, a `BrowserConfig` or a mapping.
        slot_root: `"own"` gives each slot a private root over the image, as a container of the image would have;
            `"shared"` the root of its sandbox. By default, several slots of a container get private roots, and a
            RuntimeWarning reports if the engine does not allow it.
        workdir: Where calls and sessions start, and the base of relative paths, in `files` too: an absolute path in the
            slot (created if missing), or `"image"` for the image's WORKDIR. None is the slot's workspace.
        acquire_timeout_s: How long a request waits for a slot.
        disk_wait_s: How long requests wait while a disk of each sandbox is nearly full and no slot there is in use;
            then they raise HostDiskFull. None: up to `acquire_timeout_s`.
        launch_timeout_s: Longest start of a sandbox.
        pull_timeout_s: Longest pull or build of its image, on top of `launch_timeout_s`.
        shutdown_timeout_s: Longest time that closing takes.
        lease_s: How long a sandbox outlives a silent driver. Where possible (`local`, Docker on this host), the end of
            the driver's process is noticed within a second.
        idle_timeout_s: Sandboxes above the minimum are closed after being idle for so long.
        max_lifetime_s: Older sandboxes accept no new holders and are replaced.
        runner_memory_mb: Memory of a sandbox's runner for output and data in transit, and at most an eighth of the
            sandbox's memory. An `output_limit_bytes` is at most a quarter of it. If it is used up, the output of
            processes that have ended is dropped first.
        checkpoint_disk_mb: Disk that the files of checkpoints may take in a sandbox. None: no limit but the disk's. A
            checkpoint that needs more is an OSError (ENOSPC) and changes nothing.
        run_id: Label of the sandboxes (random by default), for `hermes-exec reap`.
        note: A line of text about the run, for `hermes-exec ps`. Everybody who sees the sandboxes may read it.
        on_event: Sync or async callback for each event. Its exceptions are logged; KeyboardInterrupt then goes to the
            main thread.
        on_pull: Callback for the progress of image pulls and builds, called from any thread.
        trace: File for the metadata of each frame and event as JSON lines, never their contents (`hermes-exec trace
            FILE` shows it), or a `Tracer` such as `hermes_exec.tracing.otel.OpenTelemetry()`.
        backend_options: Fields of the backend's config class.

    Raises:
        ConfigError: If a name or value is wrong; the message names the nearest valid name.
        BackendUnavailable: If the backend is not installed.
    """

    def __init__(
        self,
        backend: str | BackendConfig = "local",
        *,
        image: str | None = None,
        slots_per_sandbox: int | None = None,
        min_sandboxes: int = 0,
        max_sandboxes: int | None = None,
        profiles: Mapping[str, ProfileConfig | Mapping[str, Any]] | None = None,
        min_isolation: IsolationLevel | None = None,
        network: bool = True,
        limits: Limits | Mapping[str, Any] | None = None,
        slot_limits: Limits | Mapping[str, Any] | None = None,
        best_effort_limits: bool = False,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        files: Mapping[str, bytes | str | Path] | None = None,
        setup: str | Sequence[str] | None = None,
        slot_setup: str | Sequence[str] | None = None,
        browser: BrowserConfig | Mapping[str, Any] | None = None,
        slot_root: SlotRoot | None = None,
        workdir: str | None = None,
        acquire_timeout_s: float = 300.0,
        disk_wait_s: float | None = None,
        launch_timeout_s: float = 120.0,
        pull_timeout_s: float = 600.0,
        shutdown_timeout_s: float = 30.0,
        lease_s: float = 60.0,
        idle_timeout_s: float = 120.0,
        max_lifetime_s: float | None = None,
        runner_memory_mb: int = 256,
        checkpoint_disk_mb: int | None = None,
        run_id: str | None = None,
        note: str = "",
        on_event: OnEvent | None = None,
        on_pull: OnPull | None = None,
        trace: str | os.PathLike[str] | Tracer | None = None,
        _needs_image: bool = True,  # False for shared pools
        **backend_options: Any,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in NO_CONFIGURATION}
        from hermes_exec.pool.lifecycle import Lifecycle
        from hermes_exec.pool.options import resolve_options, validate_callback

        self.config, backend_config = resolve_options(backend, arguments, backend_options)
        on_event, on_pull = validate_callback(on_event, "on_event"), validate_callback(on_pull, "on_pull")
        self._life = Lifecycle(self.config, backend_config, on_event, on_pull, trace, needs_image=_needs_image)
        self.run_id = self._life.run_id
        self._entered = False
        self._context: hermes_exec.blocking.PoolContext | None = None
        self._blocking: hermes_exec.blocking.SandboxPool | None = None

    @classmethod
    def from_config(
        cls,
        source: ConfigSource,
        *,
        backend: str | BackendConfig | None = None,
        profile: str | None = None,
        **more: Any,
    ) -> Self:
        """Return a pool from a YAML, TOML or JSON file, or from a mapping; the values of `profile` become the pool's.

        `backend` is a name of the section `backends`, whose values become the pool's too, or a backend as for
        `SandboxPool`. `more` are arguments that override file and profile. `hermes-exec config schema` prints the JSON
        schema of the file.

        Raises:
            ConfigError: If the file cannot be read, if a name or value in it is wrong, or if it names several backends
                and none is chosen.
            BackendUnavailable: If the backend is not installed.
        """
        from hermes_exec.config import read_config, with_profile
        from hermes_exec.pool.backend_entries import with_backend

        values = with_backend(read_config(source), backend)
        if profile is not None:
            values = with_profile(values, profile)
        values |= more
        options = values.pop("backend_options", None) or {}
        if not isinstance(options, Mapping):
            raise ConfigError("backend_options must be a mapping")
        return cls(values.pop("backend", "local"), **{**options, **values})

    @classmethod
    def from_env(cls, prefix: str = "HERMES_EXEC_", **more: Any) -> Self:
        """Return a pool from the environment: `HERMES_EXEC_BACKEND`, `HERMES_EXEC_IMAGE`, `HERMES_EXEC_MAX_SANDBOXES`,
        …

        The variable of an option of the pool or its backend is its name in capitals after the prefix. Values that are
        not text are read as YAML. `HERMES_EXEC_CONFIG` names a file that is read first. Variables of older tools
        (`TERMINAL_*`, …) are not read: a warning points to `hermes-exec config import`. Another name after the prefix
        is a warning too, with the nearest valid name. `more` are arguments that override everything else.

        Raises:
            ConfigError: If a value cannot be read.
        """
        from hermes_exec.pool.from_env import read_options

        named = more.pop("backend") if isinstance(more.get("backend"), str) else None
        options, profile = read_options(os.environ, prefix, named)
        return cls.from_config(options, profile=profile, **more)

    @classmethod
    def shared(cls, config: ConfigSource | PoolConfig | None = None, **more: Any) -> Self:
        """Return a pool that all parts of a program share, at once and unopened: `await pool.open()` opens it.

        There is one for each process, event loop and configuration, in asyncio and trio; a forked child gets its own.
        Ask for it whenever you need a slot, and do not enter it with `async with`, which would close it for the others.
        It closes when the event loop or the process ends, in workers of `multiprocessing` too, and after
        `idle_timeout_s` without slots and requests. After that, this returns a new pool. It needs no image if each
        request names one.

        A loop that ends as `asyncio.run`, `anyio.run` and trio end it closes its pools, because it cancels their tasks.
        If a loop is only closed, a thread ends the sandboxes within two seconds. The lease ends what is left, for
        example after `kill -9`.

        Args:
            config: A file or a mapping as for `from_config`, or a `PoolConfig`. None: the environment, as for
                `from_env`.
            more: Arguments that override the configuration. Pools with other functions or tracers are other pools.

        Raises:
            ConfigError, BackendUnavailable: As `from_config` and `from_env`.
            RuntimeError: If no event loop runs here. `hermes_exec.blocking.SandboxPool.shared` needs none.
        """
        from hermes_exec.aio.loop import running_loop
        from hermes_exec.aio.portal import in_event_loop
        from hermes_exec.pool.shared import shared_pools

        if not in_event_loop():
            raise RuntimeError("no event loop runs here: use `hermes_exec.blocking.SandboxPool.shared(...)`")
        new = cls._from_any(config, more)
        return shared_pools().get(running_loop(), new, new._life)

    @classmethod
    def _from_any(cls, config: ConfigSource | PoolConfig | None, more: Mapping[str, Any]) -> Self:
        from hermes_exec.config import PoolConfig

        more = {**more, "_needs_image": False}
        if config is None:
            return cls.from_env(**more)
        return cls.from_config(dict(config) if isinstance(config, PoolConfig) else config, **more)

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        image = f" image={self.config.image!r}" if self.config.image else ""
        return f"<SandboxPool {type(self._templates.backend).backend!r}{image} run_id={self.run_id!r} {state}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("a SandboxPool cannot be sent to another process: create one there")

    # Entering and leaving.

    @property
    def is_open(self) -> bool:
        """Whether slots may be acquired: the pool was opened in this process, and is not closed."""
        return self._life.is_open

    async def open(self) -> Self:
        """Open the pool and return it. Used without a block: `aclose` ends the pool. No effect if it is open.

        Tasks that call this at the same time wait for one opening, and get its error if it fails. It may then be tried
        again.

        Raises:
            RuntimeError: If the pool was closed, or belongs to another process or event loop. Other errors are those of
                `acquire`.
        """
        await self._life.open()
        return self

    async def __aenter__(self) -> Self:
        from hermes_exec.pool.lifecycle import ENTERED_ONCE

        if self._entered:
            raise RuntimeError(ENTERED_ONCE)
        self._entered = True
        try:
            return await self.open()
        except BaseException:
            self._entered = False
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._life.end()

    async def aclose(self) -> None:
        """End every sandbox that this pool started, within `shutdown_timeout_s`, also when cancelled.

        Also waits for the removal of orphans of earlier drivers. Calls under way and waiting requests raise SlotClosed.
        May be called more than once.
        """
        await self._life.aclose()

    def __enter__(self) -> hermes_exec.blocking.SandboxPool:
        from hermes_exec import blocking

        entry = blocking.PoolContext(self)
        self._context, self._blocking = entry, entry.__enter__()
        return self._blocking

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._context is not None:
            self._context.__exit__(kind, error, trace)

    # Acquiring and releasing slots.

    def slot(
        self,
        profile: str | ProfileConfig | None = None,
        image: str | None = None,
        workdir: str | None = None,
        timeout_s: float | None = None,
        owner: str | None = None,
        from_: AnyCheckpoint | None = None,
    ) -> SlotContext[Slot, hermes_exec.blocking.Slot]:
        """Acquire a slot for a block, and release it afterwards. Arguments and errors as in `acquire`."""
        request = (profile, image, workdir, timeout_s, owner, from_)
        return SlotContext(lambda: self.acquire(*request), self.release, lambda: self._facade().slot(*request))

    def slots(
        self,
        n: int,
        profile: str | ProfileConfig | None = None,
        image: str | None = None,
        workdir: str | None = None,
        timeout_s: float | None = None,
        owner: str | None = None,
        from_: AnyCheckpoint | None = None,
    ) -> SlotContext[list[Slot], list[hermes_exec.blocking.Slot]]:
        """Acquire `n` slots for a block: all at once, or none and AcquireTimeout.

        Raises:
            ConfigError: If the pool can never have so many at once. Otherwise as `acquire`.
        """
        request = (profile, image, workdir, timeout_s, owner, from_)
        validate_count(n, "n")
        return SlotContext(
            lambda: self._life.check_open().queue.acquire(_slot_request(*request), n),
            self._release_all,
            lambda: self._facade().slots(n, *request),
        )

    def fork(
        self, source: AnySlot | AnyCheckpoint, n: int, *, timeout_s: float | None = None, owner: str | None = None
    ) -> SlotContext[list[Slot], list[hermes_exec.blocking.Slot]]:
        """Acquire `n` slots for a block that are copies of a slot, or start from a checkpoint, as `slots(n, from_=…)`.

        A slot gets a checkpoint for it (`Slot.checkpoint`), which lasts until the copies are acquired.

        Raises:
            ConfigError: If there can never be so many slots at once. Otherwise as `acquire` and `Slot.checkpoint`.
        """
        validate_count(n, "n")

        async def acquire() -> list[Slot]:
            from hermes_exec.pool.fork import acquire_forks

            request = SlotRequest(timeout_s=timeout_s, owner=owner)
            return await acquire_forks(self._life.check_open(), source, n, request)

        return SlotContext(
            acquire, self._release_all, lambda: self._facade().fork(source, n, timeout_s=timeout_s, owner=owner)
        )

    def _facade(self) -> hermes_exec.blocking.SandboxPool:
        if self._blocking is None:
            if self._running is None or not self._running.started:
                raise RuntimeError("the pool is not open: use `with SandboxPool(...) as pool, pool.slot() as slot:`")
            raise RuntimeError("the pool was entered by `async with`: use `async with` for its slots too")
        return self._blocking

    async def acquire(
        self,
        profile: str | ProfileConfig | None = None,
        image: str | None = None,
        workdir: str | None = None,
        timeout_s: float | None = None,
        owner: str | None = None,
        from_: AnyCheckpoint | None = None,
    ) -> Slot:
        """Acquire a slot until it is released. Requests are served in order of arrival.

        Args:
            profile: One of the pool's profiles by name, or an inline one. Profiles share sandboxes if only `env`,
                `secrets`, `files`, `slot_setup` and `workdir` differ, which belong to the slot: `setup` does not see
                them. Unused templates of images and inline profiles are forgotten, except the last 64.
            image: Image of the sandbox, instead of the pool's.
            workdir: Where calls start, instead of the pool's `workdir`.
            timeout_s: Longest wait (default: the pool's `acquire_timeout_s`).
            owner: A name for the Acquired event.
            from_: A checkpoint. The slot starts from its state, in its sandbox, without `files` and `slot_setup`.
                `profile` and `image` are by default the same as for the checkpoint's slot.

        Raises:
            AcquireTimeout: If no slot became free in time.
            LaunchError: If launches failed and no living sandbox can serve the request; ImageError, IsolationError and
                the other subclasses name the reason.
            BackendUnavailable: If the engine, or each of its hosts, was unavailable all that time.
            ConfigError: If there is no such profile, if the backend has no images, or if calls cannot start in
                `workdir`, or if there can never be so many slots beside the slot of `from_`, or none with its image.
            CheckpointLost: If the sandboxes with a copy of `from_` have ended.
            SlotClosed: If the pool was closed meanwhile, or `from_` was dropped.
        """
        request = _slot_request(profile, image, workdir, timeout_s, owner, from_)
        (slot,) = await self._life.check_open().queue.acquire(request)
        return slot

    async def release(self, slot: Slot) -> None:
        """Release a slot and reset it; return when the reset is done. A second release has no effect.

        A slot that cannot be proven clean is quarantined, and its sandbox replaced. A sandbox that is silent meanwhile
        is given up after about 7 s.

        Raises:
            ConfigError: If the slot belongs to another pool.
        """
        if self._running is not None:
            self._running.check_process()
            await self._running.releases.release(slot)

    async def _release_all(self, slots: list[Slot]) -> None:
        async with anyio.create_task_group() as tasks:
            for slot in slots:
                tasks.start_soon(self.release, slot)

    async def abilities(self, profile: str | ProfileConfig | None = None, image: str | None = None) -> Abilities:
        """Return what a slot of this profile and image can have, before one is acquired.

        The answer is found in a sandbox, which is launched if none is ready, and which the next `acquire` with this
        profile and image uses. No slot is taken for it. Calls at the same time share the launch, and later calls get
        the same answer at once. Limits make sandboxes differ: to acquire with limits from the same sandbox, ask with a
        profile that has them and `best_effort_limits=True`.

        Raises:
            AcquireTimeout: If no sandbox is ready within `acquire_timeout_s`. Otherwise as `acquire`.
        """
        return await self._life.check_open().queue.examine(profile, image)

    def check_checkpoints(self, profile: str | ProfileConfig | None = None, image: str | None = None) -> None:
        """Check whether slots of this profile and image can have checkpoints (`Slot.checkpoint`). Starts nothing, so
        that an engine may still refuse what they need.

        Raises:
            ConfigError: If they can have none; with the settings that make them possible. Otherwise as `acquire`.
        """
        from hermes_exec.pool.checkpoints import check_template

        check_template(self._templates.get(profile, image))

    async def load(
        self,
        path: str | os.PathLike[str],
        *,
        profile: str | ProfileConfig | None = None,
        image: str | None = None,
        allow_other_image: bool = False,
    ) -> Checkpoint:
        """Return a checkpoint from a file that `Checkpoint.save` has written, in a sandbox of this profile and image.

        The file is not trusted: what no slot could have made is refused, and nothing is written outside of the layers.
        The ids in `Checkpoint.sessions` are those of the saved sessions.

        Args:
            path: The file.
            profile: As for `acquire`.
            image: As for `acquire`.
            allow_other_image: Whether the image, by the engine's id, and the commands of `setup` may be others than
                those that the checkpoint was made with. Its layers then lie over other files.

        Raises:
            ConfigError: If it is no such file or is damaged, if an entry is refused (the message has its name), or if
                the slots have another image, no root of their own for the file of a root, or other paths of their
                directories for the file of directories.
            OSError: If it cannot be read, or a disk has no room. Otherwise as `prewarm`.
        """
        from hermes_exec.pool.saved import load_checkpoint

        running = self._life.check_open()
        return await load_checkpoint(
            running.fleet, running.queue, path, profile, image, allow_other_image=allow_other_image
        )

    async def prewarm(self, n: int, profile: str | ProfileConfig | None = None, image: str | None = None) -> None:
        """Wait until `n` sandboxes are ready, and launch the missing ones. Idle ones are closed as usual.

        Raises:
            ConfigError: If `n` is above `max_sandboxes`.
            LaunchError: If launches failed.
            AcquireTimeout: If they are not ready within `acquire_timeout_s`.
        """
        running = self._life.check_open()
        await self._templates.fit_gpus(profile, image)
        template = self._templates.get(profile, image)
        if validate_count(n, "n", least=0) > (most := template.most_sandboxes):
            raise ConfigError(
                f"{n} sandboxes were requested, and there can be at most {most} of {template.key}: "
                f"set max_sandboxes={n}"
            )
        if n:
            await running.queue.warm(template, n)

    async def prefetch(self, images: Iterable[str], profile: str | None = None) -> dict[str, ExecError | None]:
        """Prepare images (pull, build, convert) before slots are requested, and return the error of each image, or
        None.

        At most `launches_at_once` images are prepared at once, each within `pull_timeout_s`; `on_pull` receives their
        progress. An image that fails does not stop the others: it has the error that launching a sandbox with it
        would raise.

        Raises:
            ConfigError: If there is no such profile, if this backend has no images, or if `images` are not names.
            SlotClosed: If the pool was closed meanwhile.
        """
        from hermes_exec.pool.prefetch import prefetch

        return await prefetch(self._life.check_open().fleet, images, profile, self._life.on_pull)

    def events(self) -> Events:
        """Return an async iterator over the events from now on, until the pool closes.

        It buffers 1,000 events, then drops the oldest and counts them in `dropped`.
        """
        return self._life.hub.listen()

    def stats(self) -> PoolStats:
        """Return the figures of the pool at this moment."""
        from hermes_exec.pool.stats import pool_stats

        return pool_stats(self._running, self._templates.slots_most)

    def mask(self, data: T) -> T:
        """Return JSON data, or a text, with the secrets of the pool and its backend masked in every text."""
        from hermes_exec.redact import mask_data

        return mask_data(data, self._life.secrets)

    @property
    def _running(self) -> RunningPool | None:
        return self._life.running

    @property
    def _templates(self) -> Templates:
        return self._life.templates


def _slot_request(
    profile: str | ProfileConfig | None,
    image: str | None,
    workdir: str | None,
    timeout_s: float | None,
    owner: str | None,
    from_: AnyCheckpoint | None,
) -> SlotRequest:
    if from_ is None:
        return SlotRequest(profile, image, workdir, timeout_s, owner)
    from hermes_exec.slot.checkpoint import plain_checkpoint

    return SlotRequest(profile, image, workdir, timeout_s, owner, plain_checkpoint(from_))
