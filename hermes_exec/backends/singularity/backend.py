"""The Singularity and Apptainer backend: a sandbox is a container whose process 1 is the runner, started as a child."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import threading
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread

from hermes_exec.aio.tasks import PlainTaskGroup
from hermes_exec.backends import runner_binary
from hermes_exec.backends.base import Labels, LaunchSpec
from hermes_exec.backends.host_backend import HostBackend
from hermes_exec.backends.owner import descendants
from hermes_exec.backends.process import kill_with_descendants, start_child
from hermes_exec.backends.removal import remove_tree
from hermes_exec.backends.sandbox_directory import SandboxDirectory, check_parent, make_directory
from hermes_exec.backends.singularity.command import (
    StartPlan,
    launch_command,
    limit_enforcement,
    limit_options,
    local_site,
)
from hermes_exec.backends.singularity.config import SingularityConfig
from hermes_exec.backends.singularity.engine import (
    SingularityEngine,
    check_options,
    engine_environment,
    fakeroot_options,
    find_engine,
    image_of,
    mount_obstacle,
    prefer_owners,
)
from hermes_exec.backends.singularity.errors import RefusedError, RefusedFeature, start_error
from hermes_exec.backends.singularity.images import SingularityImages, identify_image
from hermes_exec.backends.singularity.sandbox import SingularitySandbox, base_of
from hermes_exec.backends.singularity.sources import is_foreign_directory
from hermes_exec.backends.strict_path import make_private_directory
from hermes_exec.backends.threads import launch_in_thread
from hermes_exec.errors import ConfigError, ExecError, LaunchError

logger = logging.getLogger(__name__)
PREFIX = "hermes-singularity-"
"""Prefix of the names of sandboxes' directories."""
START_TIMEOUT_S = 60.0
"""Longest wait for the runner of a new sandbox, whose image is there already."""
POLL_S = 0.005
IN_MEMORY = (
    "changes of the image are in memory, where an administrator's `sessiondir max size` bounds them, by default to 64 "
    "MiB; overlay='disk' has the room of base_dir's disk"
)
UNPACKED = (
    "this user cannot mount the files of images, so each is unpacked once into a directory of the cache. To use the "
    "files themselves, give access to /dev/fuse and install squashfuse"
)


class SingularityBackend(HostBackend):
    """A backend that runs sandboxes on this host, as the user of this process."""

    name = "singularity"
    can_be_exclusive = True
    private_root = False
    readonly_paths: tuple[str, ...] = ()

    def __init__(self, config: SingularityConfig) -> None:
        super().__init__(config.base_dir, PREFIX)
        self._config = config
        self._images = SingularityImages(config)
        self._engine: SingularityEngine | None = None
        self._refused: dict[RefusedFeature, RefusedError] = {}

    async def check(self, spec: LaunchSpec) -> None:
        """See `Backend.check`."""
        engine = await anyio.to_thread.run_sync(self._check, spec, limiter=self._limiter)
        image = image_of(self._config, spec)
        await anyio.to_thread.run_sync(self._images.check, image, engine, limiter=self._limiter)
        if self._config.fakeroot and is_foreign_directory(image):
            problem = (
                f"root of a sandbox cannot change the files of the directory {image!r}: they belong to another user"
            )
            warnings.warn(
                f"{problem}. Build a file of it: apptainer build NAME.sif {image}", RuntimeWarning, stacklevel=2
            )

    async def remarks(self) -> list[str]:
        """See `HasRemarks.remarks`."""
        engine = await anyio.to_thread.run_sync(self._find_engine, limiter=self._limiter)
        obstacle = await anyio.to_thread.run_sync(mount_obstacle, engine, limiter=self._limiter)
        return [f"{obstacle}: {UNPACKED}"] if obstacle else []

    def _check(self, spec: LaunchSpec) -> SingularityEngine:
        check_options(self._config, spec)
        if "limits" in self._refused and _requests_limits(spec):
            raise ConfigError(str(self._refused["limits"]))
        runner_binary.find_runner()
        check_parent(self._config.base_dir, PREFIX, runs_programs=True)
        return self._find_engine()

    def _find_engine(self) -> SingularityEngine:
        if self._engine is None:
            self._engine = find_engine(self._config.binary)
        return self._engine

    async def launch(self, spec: LaunchSpec, labels: Labels) -> SingularitySandbox:
        """See `Backend.launch`."""
        engine, image = await self._ready(spec)
        given_up = threading.Event()
        work = partial(self._launch, spec, labels, engine, image, given_up)
        try:
            async with PlainTaskGroup() as tasks:
                tasks.start_soon(_set_when_cancelled, given_up)
                sandbox = await launch_in_thread(work, SingularitySandbox.destroy_now, self._limiter)
                tasks.cancel_scope.cancel()
        except ExecError:
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise
        return sandbox

    async def prefetch(self, spec: LaunchSpec) -> None:
        """See `CanPrefetch.prefetch`."""
        await self._ready(spec)

    async def _ready(self, spec: LaunchSpec) -> tuple[SingularityEngine, Path]:
        engine = await anyio.to_thread.run_sync(self._check, spec, limiter=self._limiter)
        image = image_of(self._config, spec)
        return engine, await self._images.ensure(image, engine, spec.pull_timeout_s, spec.on_progress)

    @asynccontextmanager
    async def trial_image(self) -> AsyncIterator[tuple[str, list[str]]]:
        """See `HasTrialImage.trial_image`. The image is a directory."""
        directory = await anyio.to_thread.run_sync(make_private_directory, "hermes-exec-image-")
        try:
            await anyio.to_thread.run_sync(_fill, directory)
            yield str(directory), ["/runner", "version"]
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove_tree, directory)

    def _launch(
        self, spec: LaunchSpec, labels: Labels, engine: SingularityEngine, image: Path, given_up: threading.Event
    ) -> SingularitySandbox:
        """Launch a sandbox. A feature that the engine refuses here, and the sandbox can do without, is tried once."""
        runner = runner_binary.path()
        while True:
            on_disk = self._config.overlay != "memory" and "overlay" not in self._refused
            with_limits = bool(limit_options(spec)) and "limits" not in self._refused
            try:
                return self._start(spec, labels, StartPlan(engine, image, runner, on_disk, with_limits), given_up)
            except RefusedError as error:
                overlay = error.refused == "overlay" and on_disk and self._config.overlay == "auto"
                limits = error.refused == "limits" and with_limits and not _requests_limits(spec)
                if not overlay and not limits:
                    raise error.error from None
                logger.info("sandboxes are started without %s: %s", error.refused, error)
                self._refused[error.refused] = error

    def _start(
        self, spec: LaunchSpec, labels: Labels, start: StartPlan, given_up: threading.Event
    ) -> SingularitySandbox:
        directory = make_directory(self._config.base_dir, PREFIX, labels)
        try:
            argv = launch_command(self._config, spec, start, local_site(directory, spec.network))
            env = engine_environment(self._config, start.engine)
            prefer_owners(start.engine, Path(start.image), self._config.fakeroot, str(directory.path), env)
            process = start_child(argv, directory.log, env, subprocess.PIPE)
        except OSError as error:
            directory.remove()
            raise LaunchError(f"the sandbox cannot be started: {error}") from error
        try:
            pid = _wait_for_runner(process, directory, given_up)
        except BaseException:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
            kill_with_descendants(process)
            directory.remove()
            raise
        directory.remember_runner(pid)
        return SingularitySandbox(
            process,
            pid,
            directory,
            Path(start.runner),
            limits=limit_enforcement(spec, with_limits=start.with_limits),
            remove=self._remove,
            exclusive=spec.exclusive,
            room_hint=IN_MEMORY if os.geteuid() != 0 and not start.overlay_on_disk else "",
            image_id=identify_image(Path(start.image)),
        )

    def _remove(self, directory: SandboxDirectory) -> None:
        directory.remove(self._remove_as_fakeroot if os.geteuid() != 0 else None)

    def _remove_as_fakeroot(self, path: Path) -> None:
        """Remove files of the further users that `fakeroot_options` gave to a sandbox."""
        directory = make_private_directory("hermes-exec-image-")
        try:
            _fill(directory)
            engine = self._find_engine()
            argv = [engine.path, "-s", "exec", "--containall", "--no-home", *fakeroot_options(engine)]
            argv += ["--bind", f"{path}:/hermes-exec-left", str(directory)]
            argv += ["/runner", "end", "--base", "/hermes-exec-left/base"]
            env = engine_environment(self._config, engine)
            subprocess.run(
                argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_TIMEOUT_S, check=False
            )
        except (OSError, ExecError, subprocess.TimeoutExpired) as error:
            logger.debug("%s cannot be removed with fakeroot: %s", path, error)
        finally:
            remove_tree(directory)


def _requests_limits(spec: LaunchSpec) -> bool:
    """Whether the sandbox must have limits."""
    return not spec.best_effort_limits and not set(spec.limits.total()) <= spec.default_limits


def _fill(directory: Path) -> None:
    """Make a root directory with the runner and the mount points of the engine."""
    for name in ("dev", "etc", "proc", "root", "sys", "tmp", "var/tmp"):
        (directory / name).mkdir(parents=True)
    shutil.copy(runner_binary.path(), directory / "runner")
    directory.chmod(0o755)


async def _set_when_cancelled(event: threading.Event) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        event.set()


def _wait_for_runner(process: subprocess.Popen[bytes], directory: SandboxDirectory, given_up: threading.Event) -> int:
    """Wait until the runner serves, and return its pid on this host.

    Raises:
        LaunchError: If the engine ended before, the launch was abandoned, or the time is over.
    """
    deadline, socket = time.monotonic() + START_TIMEOUT_S, base_of(directory) / "run" / "socket"
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        if socket.exists() and (pid := _process_1(process.pid)) is not None:
            return pid
        if ended:
            raise start_error(directory.log_tail())
        if given_up.wait(POLL_S):
            raise LaunchError("the launch was abandoned")
    raise LaunchError(f"the sandbox did not start within {START_TIMEOUT_S:g} s: {directory.log_tail()[-500:]}")


def _process_1(starter: int) -> int | None:
    """Return the process that is process 1 of a namespace, among the engine's descendants; others mount images."""
    for child in descendants(starter):
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{child}/status").read_text("ascii", "replace")
            numbers = re.search(r"^NSpid:(?:\t\d+)+\t1$", status, re.MULTILINE)
            if numbers is not None:
                return child
    return None
