"""Images that are built or converted once and kept in a cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import Process

from hermes_exec.backends.process import tie_to_parent
from hermes_exec.backends.removal import remove_tree
from hermes_exec.backends.singularity.config import SingularityConfig
from hermes_exec.backends.singularity.engine import TEMPORARY, SingularityEngine, mount_obstacle
from hermes_exec.backends.singularity.errors import image_build_error
from hermes_exec.backends.singularity.sources import ImageSource, find_image
from hermes_exec.errors import ConfigError, ImageError, LaunchTimeout
from hermes_exec.file_lock import hold_lock
from hermes_exec.results import PullProgress

Progress = Callable[[PullProgress], None]
GRACE_S = 5.0
CREDENTIALS = "(APPTAINER|SINGULARITY|DOCKER)_.*|REGISTRY_AUTH_FILE"
MAX_OUTPUT_CHARS = 4096

SIF_MAGIC, SIF_ID = slice(32, 41), slice(48, 64)
"""Fields of the header of an image file."""


def identify_image(path: Path) -> str:
    """Return the id of an image: of a file the one that its build has drawn, of a directory its path; blocking.

    Raises:
        OSError: If it cannot be read.
    """
    if path.is_file():
        with path.open("rb") as file:
            header = file.read(SIF_ID.stop)
        if header[SIF_MAGIC] == b"SIF_MAGIC":
            return header[SIF_ID].hex()
    return str(path.resolve())


class SingularityImages:
    """The images of this host."""

    def __init__(self, config: SingularityConfig) -> None:
        self._config = config
        self._cache = Path(config.cache_dir or Path.home() / ".cache" / "hermes-exec" / "images")
        self._ready: dict[str, Path] = {}

    def check(self, name: str, engine: SingularityEngine) -> None:
        """Check that the image exists or may be fetched; blocking.

        Raises:
            ImageError: If it is a missing file, or may not be fetched.
        """
        mounts_files = not mount_obstacle(engine)
        source = find_image(name, mounts_files=mounts_files)
        if isinstance(source, ImageSource):
            self._check_policy(name, self._cache_path(source, mounts_files=mounts_files))

    def _check_policy(self, name: str, path: Path) -> None:
        if self._config.pull_policy == "never" and not path.exists():
            raise ImageError(f"the image {name!r} is not in the cache ({self._cache}), and pull_policy is 'never'")

    async def ensure(
        self, name: str, engine: SingularityEngine, timeout_s: float, on_progress: Progress | None
    ) -> Path:
        """Return the path of the image, which is built or converted if the cache does not have it.

        Raises:
            ImageError: If it is missing, and may not or cannot be fetched or built.
            ConfigError: If there can be no cache.
            LaunchTimeout: If it took longer than `timeout_s`.
        """
        ready = self._ready.get(name)
        if ready is None or not ready.exists():
            try:
                with anyio.fail_after(timeout_s):
                    ready = self._ready[name] = await self._find_or_build(name, engine, on_progress)
            except TimeoutError as error:
                raise LaunchTimeout(f"the image {name!r} was not there within pull_timeout_s={timeout_s:g}") from error
        return ready

    async def _find_or_build(self, name: str, engine: SingularityEngine, on_progress: Progress | None) -> Path:
        obstacle = await anyio.to_thread.run_sync(mount_obstacle, engine, abandon_on_cancel=True)
        find = partial(find_image, name, mounts_files=not obstacle)
        source = await anyio.to_thread.run_sync(find, abandon_on_cancel=True)
        if isinstance(source, Path):
            return source
        path = self._cache_path(source, mounts_files=not obstacle)
        if not path.exists():
            self._check_policy(name, path)
            try:
                self._cache.mkdir(parents=True, exist_ok=True)
                async with hold_lock(path) as alone:
                    if not path.exists():
                        await self._build(name, source, path, engine, obstacle, on_progress, alone=alone)
            except OSError as error:
                problem = f"images cannot be kept in {self._cache} ({error.strerror}): choose another cache_dir"
                raise ConfigError(problem) from error
        return path

    def _cache_path(self, source: ImageSource, *, mounts_files: bool) -> Path:
        key = f"{source.content} {platform.machine()} {'file' if mounts_files else 'directory'}"
        readable = re.sub(r"[^A-Za-z0-9.]+", "-", source.argument.rpartition("/")[2])[-40:].strip("-.")
        name = f"{readable}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        return self._cache / (f"{name}.sif" if mounts_files else name)

    async def _build(
        self,
        name: str,
        source: ImageSource,
        path: Path,
        engine: SingularityEngine,
        obstacle: str,
        on_progress: Progress | None,
        *,
        alone: bool,
    ) -> None:
        if alone:  # remove leftovers of killed builds
            for left in self._cache.glob(f"{path.name}.part-*"):
                await anyio.to_thread.run_sync(remove_tree, left)
        part = Path(tempfile.mkdtemp(prefix=f"{path.name}.part-", dir=self._cache))
        try:
            argv = [engine.path, "build"]
            if obstacle:
                argv += ["--sandbox", "--fix-perms"]
            if self._config.no_https:
                argv.append("--no-https")
            env = self._config.helper_environment(CREDENTIALS)
            if not any(map(env.get, TEMPORARY)):
                env[f"{engine.prefix}_TMPDIR"] = str(part)
            errors = await _run([*argv, str(part / "image"), source.argument], env, name, on_progress)
            if errors is not None:
                raise image_build_error(name, source.argument, errors, obstacle)
            with contextlib.suppress(OSError):  # another program was faster
                os.rename(part / "image", path)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove_tree, part)


async def _run(argv: list[str], env: Mapping[str, str], name: str, on_progress: Progress | None) -> str | None:
    """Run a build, and return its messages if it failed. If the caller stops waiting, the build ends."""
    with anyio.CancelScope(shield=True):  # a start that is cancelled half-way leaves its pipes open
        process = await anyio.open_process(
            tie_to_parent(argv),
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    try:
        errors = await _read_errors(process, name, on_progress)
        code = await process.wait()
    finally:
        await _end(process)
    return None if code == 0 else errors


async def _read_errors(process: Process, name: str, on_progress: Progress | None) -> str:
    assert process.stderr is not None
    errors = ""
    async for data in process.stderr:
        errors = (errors + data.decode("utf-8", "replace"))[-MAX_OUTPUT_CHARS:]
        line = re.sub(r"\x1b\[\d*m", "", errors.rstrip().rpartition("\n")[2])
        if on_progress is not None and line.startswith("INFO:"):
            on_progress(PullProgress(name, line.removeprefix("INFO:").strip()))
    return re.sub(r"\x1b\[\d*m", "", errors)


async def _end(process: Process) -> None:
    if process.returncode is None:
        with anyio.CancelScope(shield=True):
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with anyio.move_on_after(GRACE_S):
                    await process.wait()
                    break
    await process.aclose()
