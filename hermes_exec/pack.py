"""A local file tree as a tar stream, made piece by piece in a worker thread."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Protocol, cast

from hermes_exec.results import TreeCopied

PIECE_BYTES = 1 << 18
BUFFER_BYTES = 1 << 16
"""What tarfile keeps; it copies all of that for each header and each piece of a file."""
MAX_REPORTED = 1000
PERMISSIONS = 0o777


@dataclass
class Sink:
    """The file that tarfile writes to: `send` takes pieces of `PIECE_BYTES` or a little more, and may block."""

    send: Callable[[bytes], None]
    gathered: list[bytes] = field(default_factory=list)
    size: int = 0

    def write(self, data: bytes) -> int:
        """Hand on what makes a piece."""
        self.gathered.append(data)
        self.size += len(data)
        if self.size >= PIECE_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Hand on what there is."""
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

    FIFOs, sockets and devices, and what is removed or replaced meanwhile, are left out and named in `refused`. A file
    that shrinks meanwhile is an OSError.
    """
    report = _Report()
    links: _Links = {}
    sink = Sink(send)
    archive = tarfile.open(  # noqa: SIM115 - closed below only on success: closing writes the end marker
        fileobj=cast("IO[bytes]", sink), mode="w|", bufsize=BUFFER_BYTES, format=tarfile.GNU_FORMAT
    )
    try:
        for path, name in _walk(top, ""):
            try:
                _add(archive, path, name, links, report)
            except FileNotFoundError:
                report.refuse(name, "was removed meanwhile")
            cast("_Members", archive).members.clear()
    except BaseException:
        # Else its finalizer would write what is left to a reader that is gone.
        cast("_Stream", archive.fileobj).closed = True
        raise
    archive.close()
    sink.flush()
    return TreeCopied(report.files, report.bytes, tuple(report.refused))


def _walk(path: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Paths below a directory with their names in the archive, a directory before what is in it."""
    pending = [(path, prefix)]
    while pending:
        folder, above = pending.pop()
        folders = []
        for name in _names(folder, missing_ok=folder != path):
            child, inner = os.path.join(folder, name), f"{above}{name}"
            yield child, inner
            if os.path.isdir(child) and not os.path.islink(child):
                folders.append((child, f"{inner}/"))
        pending.extend(reversed(folders))


def _names(folder: str, missing_ok: bool) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        if missing_ok:
            return []
        raise


def _add(archive: tarfile.TarFile, path: str, name: str, links: _Links, report: _Report) -> None:
    facts = os.lstat(path)
    if stat.S_ISREG(facts.st_mode):
        _add_file(archive, path, name, links, report)
        return
    member = _member(name, facts)
    if stat.S_ISDIR(facts.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(facts.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
        report.files += 1
    else:
        report.refuse(name, "neither a file, nor a directory, nor a link")
        return
    archive.addfile(member)


def _add_file(archive: tarfile.TarFile, path: str, name: str, links: _Links, report: _Report) -> None:
    try:
        file = open_regular(path)
    except NotRegular:
        report.refuse(name, "was replaced while it was read")
        return
    with file:
        facts = os.fstat(file.fileno())
        member = _member(name, facts)
        # A number alone may be that of another file by now, which was made when the first was removed.
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
    """There is no regular file at a path any more."""


def open_regular(path: str, follow: bool = False) -> io.FileIO:
    """Open a file that was seen to be regular: whatever is there by now, this does not wait for it."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise NotRegular(error.errno, "was replaced while it was read", path) from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegular(errno.EINVAL, "was replaced while it was read", path)
    return io.FileIO(fd)
