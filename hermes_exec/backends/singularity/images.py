"""Images: what a name means, and those that are built or converted once and kept in a cache."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import platform
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread
from anyio.abc import Process

from hermes_exec.backends.box_directory import remove_tree
from hermes_exec.backends.helpers import helper_environment
from hermes_exec.backends.image_errors import not_built, not_fetched
from hermes_exec.backends.process import with_us
from hermes_exec.backends.singularity.config import SingularityConfig
from hermes_exec.backends.singularity.engine import Engine
from hermes_exec.errors import ConfigError, ImageError, LaunchError, LaunchTimeout
from hermes_exec.file_lock import locked
from hermes_exec.results import PullProgress

Progress = Callable[[PullProgress], None]
ARCHIVES = ("docker-archive:", "oci-archive:")
TRANSPORTS = (*ARCHIVES, "docker-daemon:", "oci:")
GRACE_S = 5.0
DAEMON_S = 30.0
CREDENTIALS = "(APPTAINER|SINGULARITY|DOCKER)_.*|REGISTRY_AUTH_FILE"
SAID_BYTES, PIPE = 4096, subprocess.PIPE


class Source(NamedTuple):
    """What an image is built from: the argument for the engine, and what its content is known by."""

    argument: str
    content: str


class Images:
    """The images of this host."""

    def __init__(self, config: SingularityConfig) -> None:
        self._config = config
        self._cache = Path(config.cache_dir or Path.home() / ".cache" / "hermes-exec" / "images")
        self._ready: dict[str, Path] = {}

    def check(self, name: str) -> None:
        """ImageError when the image is a file that is not there, or may not be fetched; blocking."""
        source = find(name)
        if isinstance(source, Source):
            self._check_policy(name, self._cached(source))

    def _check_policy(self, name: str, path: Path) -> None:
        if self._config.pull_policy == "never" and not path.exists():
            raise ImageError(f"the image {name!r} is not in the cache ({self._cache}), and pull_policy is 'never'")

    async def ensure(self, name: str, engine: Engine, timeout_s: float, on_progress: Progress | None) -> Path:
        """The path of the image, which is built or converted if the cache does not have it.

        Raises:
            ImageError: it is not there, and may not or cannot be fetched or built.
            ConfigError: there can be no cache.
            LaunchTimeout: that took longer than ``timeout_s``.
        """
        ready = self._ready.get(name)
        if ready is None or not ready.exists():
            try:
                with anyio.fail_after(timeout_s):
                    ready = self._ready[name] = await self._find_or_build(name, engine, on_progress)
            except TimeoutError as error:
                raise LaunchTimeout(f"the image {name!r} was not there within pull_timeout_s={timeout_s:g}") from error
        return ready

    async def _find_or_build(self, name: str, engine: Engine, on_progress: Progress | None) -> Path:
        source = await anyio.to_thread.run_sync(find, name, abandon_on_cancel=True)
        if isinstance(source, Path):
            return source
        path = self._cached(source)
        if not path.exists():
            self._check_policy(name, path)
            try:
                self._cache.mkdir(parents=True, exist_ok=True)
                async with locked(path) as alone:
                    if not path.exists():
                        await self._build(name, source, path, engine, on_progress, alone=alone)
            except OSError as error:
                told = f"images cannot be kept in {self._cache} ({error.strerror}): choose another cache_dir"
                raise ConfigError(told) from error
        return path

    def _cached(self, source: Source) -> Path:
        key = f"{source.content} {platform.machine()} {'file' if mounts_files() else 'folder'}"
        readable = re.sub(r"[^A-Za-z0-9.]+", "-", source.argument.rpartition("/")[2])[-40:].strip("-.")
        name = f"{readable}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        return self._cache / (f"{name}.sif" if mounts_files() else name)

    async def _build(
        self, name: str, source: Source, path: Path, engine: Engine, on_progress: Progress | None, *, alone: bool
    ) -> None:
        if alone:  # what killed builds have left
            for left in self._cache.glob(f"{path.name}.part-*"):
                await anyio.to_thread.run_sync(remove_tree, left)
        part = Path(tempfile.mkdtemp(prefix=f"{path.name}.part-", dir=self._cache))
        try:
            argv = [engine.path, "build"]
            argv += [] if mounts_files() else ["--sandbox", "--fix-perms"]
            argv += ["--no-https"] if self._config.no_https else []
            env = self._config.helper_environment(CREDENTIALS) | {f"{engine.prefix}_TMPDIR": str(part)}
            said = await _run([*argv, str(part / "image"), source.argument], env, name, on_progress)
            if said is not None:
                raise _failure(name, source, said)
            with contextlib.suppress(OSError):  # somebody was faster
                os.rename(part / "image", path)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove_tree, part)


def mounts_files() -> bool:
    """Whether this user can mount the file of an image: root with a loop device, others with FUSE. Else images are kept
    as folders.
    """
    return os.geteuid() == 0 or os.access("/dev/fuse", os.R_OK | os.W_OK)


def find(name: str) -> Path | Source:
    """The path of an image that can be taken as it is, or what it has to be built from; blocking.

    Raises:
        ImageError: it names a file that is not there.
        ConfigError: it is built of a Dockerfile.
    """
    if name.startswith("dockerfile:"):
        raise ConfigError(f"image={name!r} is for the docker backend: name a definition (a .def file)")
    if "://" in name or name.startswith(TRANSPORTS):
        return Source(name, _content(name))
    path = Path(name).expanduser().absolute()
    if path.is_dir():
        return path
    if path.suffix == ".def" and path.is_file():
        return Source(str(path), _definition(path))
    if path.is_file():
        return path if mounts_files() else Source(str(path), _hash(path))
    if name.startswith(("/", ".", "~")) or path.suffix in {".sif", ".def", ".img", ".sqsh"}:
        raise ImageError(f"there is no image at {path}")
    return Source(f"docker://{name}", f"docker://{name}")


def _content(name: str) -> str:
    if name.startswith(ARCHIVES):
        path, _, tag = name.partition(":")[2].partition(":")
        if not os.path.isfile(path):
            raise ImageError(f"there is no image at {os.path.abspath(path)}")
        return f"{_hash(Path(path))}:{tag}"
    if name.startswith("docker-daemon:"):
        return _daemon_image(name.partition(":")[2].removeprefix("//"))
    return name


def _daemon_image(reference: str) -> str:
    done = None
    try:
        argv, env = ["docker", "image", "inspect", "--format", "{{.Id}}", reference], helper_environment("DOCKER_.*")
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=DAEMON_S, check=False)
    except subprocess.TimeoutExpired as error:  # by its name alone an image that was kept before would be taken for it
        raise LaunchTimeout(f"the Docker daemon did not describe {reference!r} within {DAEMON_S:g} s") from error
    except OSError:
        pass
    return done.stdout.strip() if done is not None and done.returncode == 0 else reference


def _definition(path: Path) -> str:
    """A definition is known by its text, and by the files that it copies or starts from, as the engine finds them: from
    the working directory.
    """
    text = path.read_text("utf-8", "replace")
    sections = re.findall(r"^%files[^\n]*\n(.*?)(?=^%|\Z)", text, re.MULTILINE | re.DOTALL)
    words = [line for section in sections for line in section.splitlines()]
    if re.search(r"^bootstrap:\s*localimage", text, re.MULTILINE | re.IGNORECASE):
        words += re.findall(r"^from:\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)
    named = [source for line in words for source in glob.glob(os.path.expandvars(_first_word(line)))]
    parts = [f"{each} {found.st_size} {found.st_mtime_ns}" for name in named for each, found in _below(Path(name))]
    return hashlib.sha256("\n".join([text, *parts]).encode("utf-8", "surrogateescape")).hexdigest()


def _first_word(line: str) -> str:
    try:
        return next(iter(shlex.split(line, comments=True)), "")
    except ValueError:
        return line.strip()


def _below(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
        with contextlib.suppress(OSError):
            if each.is_file():
                yield each, each.stat()


def _hash(path: Path) -> str:
    found = path.stat()
    return _hash_of(path, found.st_size, found.st_mtime_ns, found.st_ino)


@lru_cache(maxsize=256)
def _hash_of(path: Path, *_: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def _run(argv: list[str], env: Mapping[str, str], name: str, on_progress: Progress | None) -> str | None:
    """Run a build; what it said if it failed. One that is not waited for any more is ended."""
    with anyio.CancelScope(shield=True):  # a start that is called off half-way leaves its pipes open
        process = await anyio.open_process(
            with_us(argv), env=env, stdin=PIPE, stdout=subprocess.DEVNULL, stderr=PIPE, start_new_session=True
        )
    try:
        said = await _said(process, name, on_progress)
        code = await process.wait()
    finally:
        await _end(process)
    return None if code == 0 else said


async def _said(process: Process, name: str, on_progress: Progress | None) -> str:
    assert process.stderr is not None
    said = ""
    async for data in process.stderr:
        said = (said + data.decode("utf-8", "replace"))[-SAID_BYTES:]
        line = re.sub(r"\x1b\[\d*m", "", said.rstrip().rpartition("\n")[2])
        if on_progress is not None and line.startswith("INFO:"):
            on_progress(PullProgress(name, line.removeprefix("INFO:").strip()))
    return re.sub(r"\x1b\[\d*m", "", said)


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


def _failure(name: str, source: Source, said: str) -> LaunchError:
    fatal = re.findall(r"^(?:FATAL|ERROR)\s*:\s*(.*)", said, re.MULTILINE)
    reason = (fatal[-1] if fatal else said.strip() or "the engine did not say why")[-1000:]
    if ":" in source.argument:
        return not_fetched(name, reason)
    if source.argument.endswith(".def"):
        # The last error says that a section failed; why it did stands above.
        return not_built(name, "\n".join(line for line in said.splitlines() if not line.startswith("INFO:")))
    return ImageError(
        f"this user cannot mount the file {name!r} (no access to /dev/fuse), and it cannot be made a folder either: "
        f"give access to /dev/fuse, or name a folder (apptainer build --sandbox FOLDER FILE): {reason}"
    )
