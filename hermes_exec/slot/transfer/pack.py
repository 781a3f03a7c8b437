"""A local file tree as a tar stream, produced piece by piece in a worker thread."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, NamedTuple, Protocol, cast

from hermes_exec.results import TreeCopied

# Not the obvious code: see docs/why-not-obvious.md ("Large pieces for files").
PIECE_BYTES = 1 << 18
BUFFER_BYTES = 1 << 16
"""Size of tarfile's buffer, which it copies whole for each header and each piece of a file."""
MAX_REPORTED = 1000
PERMISSIONS = 0o777
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NO_DIRECTORY = (errno.ENOTDIR, errno.ELOOP, errno.ENOENT, errno.EMLINK)
"""Errors of opening a path that is no longer a directory."""


@dataclass
class Sink:
    """The file that tarfile writes to. `send` receives pieces of at least `PIECE_BYTES`, and may block."""

    send: Callable[[bytes], None]
    gathered: list[bytes] = field(default_factory=list)
    size: int = 0

    def write(self, data: bytes) -> int:
        """Collect data, and send it once it is a whole piece."""
        self.gathered.append(data)
        self.size += len(data)
        if self.size >= PIECE_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Send the collected data."""
        if self.gathered:
            self.send(b"".join(self.gathered))
        self.gathered, self.size = [], 0


class _Stream(Protocol):
    closed: bool


class _Members(Protocol):
    members: list[tarfile.TarInfo]


_Links = dict[tuple[int, int, int], str]
"""Names of files with several links, by device, number and time of change."""


@dataclass
class _Report:
    files: int = 0
    bytes: int = 0
    refused: list[str] = field(default_factory=list)

    def refuse(self, name: str, why: str) -> None:
        if len(self.refused) < MAX_REPORTED:
            self.refused.append(f"{name}: {why}")


def pack(top: str, send: Callable[[bytes], None]) -> TreeCopied:
    """Send everything below the directory `top`, links as links, without setuid bits and owners.

    FIFOs, sockets and devices, and files that are removed or replaced meanwhile, are left out and named in `refused`.

    Raises:
        OSError: If a file shrinks meanwhile.
    """
    report = _Report()
    links: _Links = {}
    sink = Sink(send)
    archive = tarfile.open(  # noqa: SIM115 - closed below only on success: closing writes the end marker
        fileobj=cast("IO[bytes]", sink), mode="w|", bufsize=BUFFER_BYTES, format=tarfile.GNU_FORMAT
    )
    try:
        for directory, name in _walk(top, report):
            try:
                with _name_errors(os.path.join(top, name)):
                    entry = _look(directory, name)
                _add(archive, entry, name, links, report)
            except FileNotFoundError:
                report.refuse(name, "was removed meanwhile")
            cast("_Members", archive).members.clear()
    except BaseException:
        # Otherwise its finalizer would write the rest to a reader that is gone.
        cast("_Stream", archive.fileobj).closed = True
        raise
    archive.close()
    sink.flush()
    return TreeCopied(report.files, report.bytes, tuple(report.refused))


def _walk(top: str, report: _Report) -> Iterator[tuple[int, str]]:
    """Yield each name below a directory with a descriptor of its parent; a directory comes before its entries.

    No link is followed on the way, even if one replaces a directory.
    """
    pending: list[list[str]] = [[]]
    while pending:
        parts = pending.pop()
        try:
            with _name_errors(os.path.join(top, *parts)):
                directory = _open_directory(top, parts)
        except OSError as error:
            if not parts or error.errno not in NO_DIRECTORY:
                raise
            report.refuse("/".join(parts), "was removed or replaced meanwhile")
            continue
        try:
            directories = []
            for name in sorted(os.listdir(directory)):
                yield directory, "/".join((*parts, name))
                if _is_directory(directory, name):
                    directories.append([*parts, name])
        finally:
            os.close(directory)
        pending.extend(reversed(directories))


def _open_directory(top: str, parts: list[str]) -> int:
    directory = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        try:
            deeper = os.open(part, DIRECTORY, dir_fd=directory)
        finally:
            os.close(directory)
        directory = deeper
    return directory


def _is_directory(directory: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _name_errors(path: str) -> Iterator[None]:
    """Put this path into the OSErrors that are raised inside."""
    try:
        yield
    except NotRegular:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


class _TreeEntry(NamedTuple):
    """One directory entry. `file` is open if it is a regular file, `link` is the target of a link."""

    facts: os.stat_result
    file: io.FileIO | None = None
    link: str = ""


def _look(directory: int, name: str) -> _TreeEntry | None:
    """Return the entry at a name; None if it was replaced meanwhile."""
    base = name.rpartition("/")[2]
    facts = os.stat(base, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISLNK(facts.st_mode):
        try:
            return _TreeEntry(facts, link=os.readlink(base, dir_fd=directory))
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise
    if not stat.S_ISREG(facts.st_mode):
        return _TreeEntry(facts)
    try:
        file = open_regular(base, directory=directory)
    except NotRegular:
        return None
    return _TreeEntry(os.fstat(file.fileno()), file)


def _add(archive: tarfile.TarFile, entry: _TreeEntry | None, name: str, links: _Links, report: _Report) -> None:
    if entry is None:
        report.refuse(name, "was replaced while it was read")
    elif entry.file is not None:
        with entry.file:
            _add_file(archive, entry.file, entry.facts, name, links, report)
    elif stat.S_ISDIR(entry.facts.st_mode):
        member = _member(name, entry.facts)
        member.type = tarfile.DIRTYPE
        archive.addfile(member)
    elif stat.S_ISLNK(entry.facts.st_mode):
        member = _member(name, entry.facts)
        member.type, member.linkname = tarfile.SYMTYPE, entry.link
        archive.addfile(member)
        report.files += 1
    else:
        report.refuse(name, "neither a file, nor a directory, nor a link")


def _add_file(
    archive: tarfile.TarFile, file: io.FileIO, facts: os.stat_result, name: str, links: _Links, report: _Report
) -> None:
    member = _member(name, facts)
    # An inode number alone is not enough: a new file may reuse the number of a removed one.
    identity = facts.st_dev, facts.st_ino, facts.st_ctime_ns
    if facts.st_nlink > 1 and (first := links.setdefault(identity, name)) != name:
        member.type, member.linkname = tarfile.LNKTYPE, first
        archive.addfile(member)
    else:
        member.size = facts.st_size
        archive.addfile(member, file)
        report.bytes += member.size
    report.files += 1


def _member(name: str, facts: os.stat_result) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode, member.mtime = facts.st_mode & PERMISSIONS, int(facts.st_mtime)
    return member


class NotRegular(OSError):
    """Raised when a path is no longer a regular file."""


def open_regular(path: str, follow: bool = False, directory: int | None = None) -> io.FileIO:
    """Open a file that was seen to be regular, and never block, even if it was replaced.

    `directory` is a descriptor of the directory that the path starts in.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise NotRegular(error.errno, "was replaced while it was read", path) from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegular(errno.EINVAL, "was replaced while it was read", path)
    return io.FileIO(fd)
