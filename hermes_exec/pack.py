"""A local file tree as a tar stream, made piece by piece in a worker thread."""

from __future__ import annotations

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

    FIFOs, sockets and devices are left out and named in `refused`. A file that shrinks meanwhile is an OSError.
    """
    report = _Report()
    sink = Sink(send)
    archive = tarfile.open(  # noqa: SIM115 - closed below only on success: closing writes the end marker
        fileobj=cast("IO[bytes]", sink), mode="w|", bufsize=BUFFER_BYTES, format=tarfile.GNU_FORMAT
    )
    try:
        for path, name in _walk(top, ""):
            _add(archive, path, name, report)
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
        for name in sorted(os.listdir(folder)):
            child, inner = os.path.join(folder, name), f"{above}{name}"
            yield child, inner
            if os.path.isdir(child) and not os.path.islink(child):
                folders.append((child, f"{inner}/"))
        pending.extend(reversed(folders))


def _add(archive: tarfile.TarFile, path: str, name: str, report: _Report) -> None:
    facts = os.lstat(path)
    if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode) or stat.S_ISLNK(facts.st_mode)):
        report.refuse(name, "neither a file, nor a directory, nor a link")
        return
    member = archive.gettarinfo(path, arcname=name)
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode &= PERMISSIONS
    if not member.isreg():
        archive.addfile(member)
        report.files += not member.isdir()
        return
    with open(path, "rb", buffering=0) as file:
        member.size = os.fstat(file.fileno()).st_size
        archive.addfile(member, file)
    report.files += 1
    report.bytes += member.size
