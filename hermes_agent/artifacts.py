"""Copies files that an episode left in its slot to this host, whatever the programs of the slot have made of them."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import anyio
import anyio.to_thread

from hermes_agent.scoring import check_inside
from hermes_exec import Slot
from hermes_exec.errors import ConfigError, ExecError, HostDiskFull, OutputLimitExceeded
from hermes_exec.private_files import make_directory, open_private

_PIECE_BYTES = 4 << 20
_LONGEST_NAME_BYTES = 150
_LONGEST_SUFFIX_BYTES = 16
_LONGEST_MESSAGE = 300
_MAX_PROBLEMS = 20
_UNSAFE = re.compile(r"[^\w.,+=@ ~()-]|^[ ~-]|[ .]$")
_WILDCARDS = re.compile(r"[*?\[]")
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_PATH_ERRORS = frozenset({errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ})


@dataclass(frozen=True)
class Artifacts:
    """The files to copy out of a slot when its episode has ended, before it is scored.

    Only regular files are copied. Links are not followed, and nothing is written outside `directory`. Characters of a
    name that are unsafe on other systems become `_`, with a digest of the name.

    Args:
        patterns: Paths or patterns below `slot.workdir`, as in `slot.files.glob`. A directory means all files in it.
        directory: The directory of this host for the files. Files with the same names are replaced.
        limit_bytes: The most bytes of all files together.
        limit_files: The most files.
        timeout_s: The longest time to find and copy them.

    Raises:
        ConfigError: If a pattern is not a path inside the working directory, or a limit is below 1.
    """

    patterns: Sequence[str]
    directory: Path
    limit_bytes: int = 256 << 20
    limit_files: int = 1000
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if isinstance(self.patterns, str):
            raise ConfigError("patterns is a list of patterns, not one pattern")
        for pattern in self.patterns:
            check_inside(pattern)
        for name in ("limit_bytes", "limit_files", "timeout_s"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is 1 or more, not {getattr(self, name)!r}")


@dataclass(frozen=True)
class CollectedFiles:
    """The files that were copied.

    Attributes:
        paths: Their paths below the directory, sorted.
        problems: Why other files were left out, such as a limit that was reached.
    """

    paths: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


async def collect_artifacts(slot: Slot, artifacts: Artifacts) -> CollectedFiles:
    """Copy the artifacts out of a slot.

    Raises:
        ExecError: If the slot failed, or (HostDiskFull) this host has no room.
        OSError: If the directory cannot be written.
    """
    collection = _Collection(slot, artifacts)
    with anyio.move_on_after(artifacts.timeout_s) as within:
        await collection.run()
    if within.cancelled_caught:
        collection.note(f"the files could not be copied within {artifacts.timeout_s:g} s; the others were left out")
    more = [f"… and {collection.more_problems} more"] if collection.more_problems else []
    return CollectedFiles(tuple(sorted(collection.paths)), (*collection.problems, *more))


@dataclass
class _Collection:
    """A collection in progress."""

    slot: Slot
    artifacts: Artifacts
    paths: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    more_problems: int = 0
    bytes_left: int = field(init=False)
    is_directory: dict[str, bool] = field(default_factory=dict)
    """Whether a path on the way to a file is a directory, and no link to one."""

    def __post_init__(self) -> None:
        self.bytes_left = self.artifacts.limit_bytes

    def note(self, problem: str) -> None:
        """Add a problem, or count it if there are many already."""
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem if len(problem) <= _LONGEST_MESSAGE else f"{problem[:_LONGEST_MESSAGE]} …")
        else:
            self.more_problems += 1

    async def run(self) -> None:
        """Find the files and copy them."""
        found: dict[str, None] = {}
        for pattern in self.artifacts.patterns:
            try:
                found |= dict.fromkeys(await self._find(pattern))
            except (OSError, OutputLimitExceeded) as error:
                self._note_error(pattern, error)
        for path in sorted(found):
            if len(self.paths) == self.artifacts.limit_files:
                self.note(f"there are more than {self.artifacts.limit_files} files; the others were left out")
                return
            try:
                await self._copy(path)
            except (OSError, OutputLimitExceeded) as error:
                self._note_error(path, error)

    async def _find(self, pattern: str) -> list[str]:
        """Return the paths that match a pattern, the newest if there are many."""
        files, limit = self.slot.files, self.artifacts.limit_files
        directory = "."
        if not _WILDCARDS.search(pattern):
            if not await files.exists(pattern):
                return []
            if not (await files.stat(pattern, follow=False)).is_dir:
                return [pattern]
            directory, pattern = pattern, "**"
        paths = await files.glob(pattern, directory, limit=limit + 1)
        if len(paths) > limit:
            self.note(f"more than {limit} paths match {pattern!r} in {directory!r}; the oldest were left out")
        return paths

    async def _copy(self, path: str) -> None:
        if not await self._is_inside(path):
            return
        facts = await self.slot.files.stat(path, follow=False)
        if facts.is_dir:
            return
        if facts.type != "file":
            self.note(f"{path!r} is not a file but a {facts.type}")
            return
        if facts.size > self.bytes_left:
            self.note(f"{path!r} has {facts.size} bytes, and {self.bytes_left} are left of the limit")
            return
        local = "/".join(map(safe_name, path.split("/")))
        if local in self.paths:
            self.note(f"{path!r} has the name of another file here")
        elif await self._copy_content(path, self.artifacts.directory / local):
            self.paths.append(local)
        else:
            self.note(f"{path!r} has more bytes than are left of the limit")

    async def _is_inside(self, path: str) -> bool:
        """Return whether a path leads to the slot's working directory or below it through no link."""
        try:
            check_inside(path)
        except ConfigError:
            return False
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            parent = "/".join(parts[:depth])
            if parent not in self.is_directory:
                facts = await self.slot.files.stat(parent, follow=False)
                self.is_directory[parent] = facts.is_dir
                if not facts.is_dir:
                    self.note(f"{parent!r} is a {facts.type}, which is not followed")
            if not self.is_directory[parent]:
                return False
        return True

    async def _copy_content(self, path: str, local: Path) -> bool:
        """Copy a file piece by piece. Return whether it fitted into the limit; otherwise nothing is left of it."""
        file = await anyio.to_thread.run_sync(_create, local)
        copied, is_whole = 0, False
        try:
            while copied <= self.bytes_left:
                piece = await self.slot.files.read_bytes(path, copied, _PIECE_BYTES, _PIECE_BYTES)
                await anyio.to_thread.run_sync(_write, file, piece)
                copied += len(piece)
                if len(piece) < _PIECE_BYTES:
                    is_whole = copied <= self.bytes_left
                    break
        finally:
            _close(file, keep=is_whole)
        self.bytes_left -= copied if is_whole else 0
        return is_whole

    def _note_error(self, path: str, error: Exception) -> None:
        """Note an error of a file. Raise it if it is a failure of the slot or of this host."""
        if isinstance(error, ExecError) and not isinstance(error, OutputLimitExceeded):
            raise error
        self.note(f"{path!r}: {getattr(error, 'strerror', None) or error}")


def safe_name(name: str) -> str:
    """Return a name that every system accepts for a file, and that leads nowhere else. Changed names have a digest."""
    safe = _UNSAFE.sub("_", name)
    if safe == name and len(name.encode()) <= _LONGEST_NAME_BYTES:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    stem, suffix = os.path.splitext(safe)
    if len(suffix.encode()) > _LONGEST_SUFFIX_BYTES:
        stem, suffix = safe, ""
    return f"{stem.encode()[:_LONGEST_NAME_BYTES].decode('utf-8', 'ignore')}-{digest}{suffix}"


def _create(path: Path) -> BinaryIO:
    with _explain_host_errors(path):
        make_directory(path.parent)
        path.unlink(missing_ok=True)
        return open(path, "xb", buffering=0, opener=open_private)


def _write(file: BinaryIO, piece: bytes) -> None:
    with _explain_host_errors(file.name):
        view = memoryview(piece)
        while view:
            view = view[file.write(view) :]


def _close(file: BinaryIO, *, keep: bool) -> None:
    file.close()
    if not keep:
        os.unlink(file.name)


@contextmanager
def _explain_host_errors(path: Path | str) -> Iterator[None]:
    """Raise ExecError if this host failed. An error about the path, such as one that is too long, stays an OSError."""
    try:
        yield
    except OSError as error:
        if error.errno in _PATH_ERRORS:
            raise
        text = f"cannot write {path} on this host: {error.strerror}"
        raise (HostDiskFull if error.errno in _NO_ROOM else ExecError)(text) from error
