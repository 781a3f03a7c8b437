"""Directories of sandboxes on this host: made with an owner file, found again, removed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hermes_exec.backends.base import Labels
from hermes_exec.backends.owner import from_json, own_labels, process_start, to_json
from hermes_exec.backends.removal import NOT_REMOVED, mounts_below, remove_tree
from hermes_exec.backends.strict_path import make_directories, unsafe_reason
from hermes_exec.errors import ConfigError, LaunchError

logger = logging.getLogger(__name__)
OWNER_FILE = "owner.json"
RUNNER_FILE = "runner.json"
LOG_FILE = "runner.log"
LEFT_FILE = "left.json"
"""Reasons of a failed removal, also written by the runner. The directory is then left alone."""
MAX_LEFT_BYTES = 256 * 1024
LOG_TAIL_BYTES = 8192
MAX_LOG_BYTES = 1 << 20
NEVER = (errno.EACCES, errno.EINVAL, errno.ENOENT, errno.ENOTSUP, errno.EPERM, errno.EROFS)
"""Errors of a file system that accepts no files at all. A full one may have room later."""


@dataclass(frozen=True, slots=True)
class SandboxDirectory:
    """The private directory of one sandbox: its owner, its runner's process and log, and its files on this host."""

    path: Path

    @property
    def sandbox(self) -> Path:
        """The `--base` of a runner that works on this host itself; the runner removes it when it ends."""
        return self.path / "base"

    @property
    def log(self) -> Path:
        """The file for the runner's stderr."""
        return self.path / LOG_FILE

    def make(self, name: str) -> str:
        """Make a directory in it and return its path."""
        (self.path / name).mkdir()
        return str(self.path / name)

    def log_tail(self) -> str:
        """Return the end of the runner's log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL_BYTES))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def truncate_log(self) -> None:
        """Empty a log that grew too long; it is written in append mode."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > MAX_LOG_BYTES:
                os.truncate(self.log, 0)

    def creation_time(self) -> float | None:
        """Return when it was made, in seconds since the epoch."""
        try:
            return (self.path / OWNER_FILE).stat().st_mtime
        except OSError:
            return None

    def owner(self) -> Labels | None:
        """Return the owner from the owner file or, until that is written, from the directory's name; None without
        either.
        """
        try:
            written = from_json((self.path / OWNER_FILE).read_text("utf-8"))
        except OSError:
            written = None
        return written or _maker(self.path.name)

    def remember_runner(self, pid: int) -> None:
        """Write down the runner's process, so that others can end it."""
        with contextlib.suppress(OSError):
            text = json.dumps({"pid": pid, "start": process_start(pid)})
            (self.path / RUNNER_FILE).write_text(text, "utf-8")

    def runner_pid(self) -> int | None:
        """Return the runner's pid if that very process still lives."""
        try:
            values = json.loads((self.path / RUNNER_FILE).read_text("utf-8"))
            pid, start = int(values["pid"]), values["start"]
            return pid if start is not None and process_start(pid) == start else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def end_runner(self, grace_s: float = 5.0) -> None:
        """End the runner if it lives: TERM, so that it ends its own processes, then KILL after `grace_s`."""
        for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 2.0)):
            pid = self.runner_pid()
            if pid is None:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
            deadline = time.monotonic() + patience_s
            while self.runner_pid() is not None and time.monotonic() < deadline:
                time.sleep(0.01)

    def removal_failure(self) -> str | None:
        """Return why an earlier removal failed; None if there was none."""
        try:
            with (self.path / LEFT_FILE).open("rb") as file:
                return "; ".join(map(str, json.loads(file.read(MAX_LEFT_BYTES))))
        except FileNotFoundError:
            return None
        except (OSError, TypeError, ValueError):
            return NOT_REMOVED

    def remove(self, otherwise: Callable[[Path], object] | None = None) -> None:
        """Remove the directory; call `otherwise` for files that this user cannot remove.

        If something is left, the directory keeps its owner and the reason. It stays while something is mounted below,
        because a removal would empty the mount.
        """
        owner = self.owner()
        left = [f"{mount} is mounted" for mount in mounts_below(self.path)]
        if left:
            logger.warning("%s is kept: %s", self.path, left[0])
        else:
            left = remove_tree(self.path, otherwise)
        if left:
            with contextlib.suppress(OSError):
                (self.path / LEFT_FILE).write_text(json.dumps(left), "utf-8")
                if owner is not None:
                    (self.path / OWNER_FILE).write_text(to_json(owner), "utf-8")


def parent_directory(base_dir: str | None) -> Path:
    """Return the directory that holds the directories of sandboxes."""
    return Path(base_dir or tempfile.gettempdir()).resolve()


def check_parent(base_dir: str | None, prefix: str, *, runs_programs: bool = False) -> None:
    """Raise ConfigError if this user cannot make directories there, or others could exchange them, or no program could
    run there that has to.
    """
    parent = parent_directory(base_dir)
    why = _why_no_directories(parent, prefix)
    if why is None and runs_programs and is_noexec(parent):
        why = "no program of a slot could run there, because its file system is mounted noexec"
    if why is not None:
        raise ConfigError(f"sandboxes cannot have their directories in {parent}: {why}; choose another base_dir")


def is_noexec(directory: Path) -> bool:
    """Return whether the file system of a directory is mounted noexec."""
    return bool(os.statvfs(directory).f_flag & getattr(os, "ST_NOEXEC", 0))


def _why_no_directories(parent: Path, prefix: str) -> str | None:
    existing = next(path for path in (parent, *parent.parents) if os.path.exists(path))
    if not existing.is_dir():
        return f"{existing} is not a directory"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"this user cannot write to {existing}"
    unsafe = unsafe_reason(existing)
    if unsafe is not None:
        return unsafe
    refused = _try_directory(parent, prefix)
    return None if refused is None else f"{existing} takes no directory with a file ({refused.strerror})"


def _try_directory(parent: Path, prefix: str) -> OSError | None:
    """Return the error if no directory with a file can ever be made there, as in /proc.

    This makes one and removes it. If the driver is killed meanwhile, others find and remove it.
    """
    tried: str | None = None
    try:
        make_directories(parent)
        tried = tempfile.mkdtemp(prefix=prefix + _name_of(own_labels("")), dir=parent)
        (Path(tried) / OWNER_FILE).touch()
    except OSError as error:
        return error if error.errno in NEVER else None
    finally:
        if tried is not None:
            with contextlib.suppress(OSError):
                (Path(tried) / OWNER_FILE).unlink(missing_ok=True)
                os.rmdir(tried)
    return None


def make_directory(base_dir: str | None, prefix: str, labels: Labels, *, mode: int = 0o700) -> SandboxDirectory:
    """Make a new private directory with its owner file.

    Raises:
        LaunchError: If it cannot be made.
    """
    parent = parent_directory(base_dir)
    directory: SandboxDirectory | None = None
    try:
        make_directories(parent)
        directory = SandboxDirectory(Path(tempfile.mkdtemp(prefix=prefix + _name_of(labels), dir=parent)))
        (directory.path / OWNER_FILE).write_text(to_json(labels), "utf-8")
        directory.path.chmod(mode)
    except OSError as error:
        if directory is not None:
            directory.remove()
        raise LaunchError(f"no directory for a sandbox in {parent}: {error.strerror}") from error
    return directory


def _name_of(labels: Labels) -> str:
    where = hashlib.sha256(f"{labels.boot_id} {labels.pid_namespace}".encode()).hexdigest()[:8]
    return f"{where}-{labels.pid}-{labels.pid_start}-"


def _maker(name: str) -> Labels | None:
    """Return the process of this machine that made a directory of this name."""
    numbers = re.fullmatch(r".+-([0-9a-f]{8}-(\d+)-(\d+)-)[^-]+", name)
    if numbers is None:
        return None
    labels = replace(own_labels(""), pid=int(numbers[2]), pid_start=int(numbers[3]))
    return labels if numbers[1] == _name_of(labels) else None


def find_directories(base_dir: str | None, prefix: str) -> list[SandboxDirectory]:
    """Return the directories of this user's sandboxes whose names begin with `prefix`, with any owner."""
    directories = []
    with contextlib.suppress(OSError), os.scandir(parent_directory(base_dir)) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                        directories.append(SandboxDirectory(Path(entry.path)))
    return directories
