"""A tar stream from a sandbox as local files: nothing is written outside the destination, whatever the stream contains.

Every step goes through a descriptor of the directory that holds the entry, and no symbolic link is ever followed. The
standard library's extraction filters are not used: they work on path names, and differ between the supported Python
versions.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, cast

from hermes_exec.results import TreeCopied
from hermes_exec.slot.transfer.pack import DIRECTORY, NO_DIRECTORY, PIECE_BYTES
from hermes_exec.slot.transfer.tar_headers import Archive, BoundedTarInfo

BUFFER_BYTES = 1 << 15
"""Size of tarfile's buffer, which it copies whole for each header."""
MAX_REPORTED = 1000
MAX_DEPTH = 256
MAX_SHOWN = 4096
LATEST = 1e11
PERMISSIONS = 0o777
ZEROS = bytes(2 << 20)
"""Zeros, more than a piece has."""
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write(file: IO[bytes], piece: bytes) -> None:
    """Write a piece of a new file. Zeros become a hole, whose end the caller sets by `truncate`."""
    if ZEROS.startswith(piece):
        file.seek(len(piece), os.SEEK_CUR)
    else:
        file.write(piece)


class _RefusedEntry(Exception):
    """Raised for an entry that is not written; the others are."""


@dataclass
class _Source:
    """The file that tarfile reads from. `receive` returns the next piece, b"" at the end."""

    receive: Callable[[], bytes]
    rest: memoryview | bytes = b""

    def read(self, size: int) -> bytes:
        parts, missing = [], size
        while missing > 0:
            if not self.rest:
                self.rest = memoryview(self.receive())
                if not self.rest:
                    break
            parts.append(self.rest[:missing])
            self.rest = self.rest[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)


@dataclass
class _Unpacker:
    top: int
    files: int = 0
    bytes: int = 0
    refused: list[str] = field(default_factory=list)
    directories: dict[str, tuple[int, float]] = field(default_factory=dict)
    original_modes: dict[str, int] = field(default_factory=dict)
    """Original modes of existing directories that their owner could not enter."""
    parent: tuple[list[str], int] | None = None
    """The directory of the previous entry, and a descriptor of it."""

    def close(self) -> None:
        if self.parent is not None:
            os.close(self.parent[1])
            self.parent = None

    def open_parent(self, parts: list[str]) -> int:
        """Return a descriptor of the directory of an entry; it is kept for the next entry."""
        if self.parent is None or self.parent[0] != parts:
            self.close()
            with self.open_directory(parts) as directory:
                self.parent = parts, os.dup(directory)
        return self.parent[1]

    def refuse(self, name: str, why: object) -> None:
        if len(self.refused) < MAX_REPORTED:
            self.refused.append(f"{name[:MAX_SHOWN]}: {str(why)[:MAX_SHOWN]}")

    @contextlib.contextmanager
    def open_directory(self, parts: list[str], *, make: bool = True) -> Iterator[int]:
        """Open a directory below the top as a descriptor; missing ones are created."""
        descriptor = os.dup(self.top)
        try:
            for part in parts:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=descriptor)
                try:
                    deeper = os.open(part, DIRECTORY, dir_fd=descriptor)
                except OSError as error:
                    if error.errno not in NO_DIRECTORY:
                        raise
                    raise _RefusedEntry(f"{part!r} in its path is not a directory") from error
                os.close(descriptor)
                descriptor = deeper
            yield descriptor
        finally:
            os.close(descriptor)

    def add_entry(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _split_name(member.name)
        if not parts and not member.isdir():
            raise _RefusedEntry("no name")
        if member.isdir():
            self.add_directory(parts, member)
            return
        directory = self.open_parent(parts[:-1])
        if member.issym():
            self.add_symlink(directory, parts, member.linkname)
        elif member.islnk():
            self.add_hardlink(directory, parts, member.linkname)
        elif member.isreg() and not member.issparse():
            self.add_file(directory, parts[-1], archive, member)
        else:
            raise _RefusedEntry("neither a file, nor a directory, nor a link")
        self.files += 1

    def add_directory(self, parts: list[str], member: tarfile.TarInfo) -> None:
        """Create a directory, or let the owner of an existing one into it until it gets its final mode."""
        name = "/".join(parts)
        with self.open_directory(parts) as directory:
            mode = stat.S_IMODE(os.fstat(directory).st_mode)
            if mode & stat.S_IRWXU != stat.S_IRWXU:
                with contextlib.suppress(PermissionError):
                    os.fchmod(directory, mode | stat.S_IRWXU)
                    self.original_modes.setdefault(name, mode)
        self.directories[name] = (member.mode & PERMISSIONS, _time(member))

    def restore_modes(self) -> None:
        """Restore the modes of existing directories after a stream that ended early."""
        for name in sorted(self.original_modes, key=_depth, reverse=True):
            with (
                contextlib.suppress(_RefusedEntry, OSError),
                self.open_directory(_split_name(name), make=False) as directory,
            ):
                os.fchmod(directory, self.original_modes[name])

    def add_file(self, directory: int, name: str, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        source = archive.extractfile(member)
        if source is None:
            raise _RefusedEntry("no content")
        with _replace(directory, name) as temporary:
            target = os.open(temporary, NEW_FILE, 0o600, dir_fd=directory)
            with open(target, "wb", buffering=0) as file:
                size = 0
                while piece := source.read(PIECE_BYTES):
                    write(file, piece)
                    size += len(piece)
                file.truncate(size)
                if size != member.size:
                    raise tarfile.ReadError("the stream ended within a file")
                os.fchmod(target, member.mode & PERMISSIONS)
                os.utime(target, (_time(member),) * 2)
        self.bytes += size

    def add_symlink(self, directory: int, parts: list[str], target: str) -> None:
        """Create a link that cannot lead outside: `..` only at its beginning, and not above the top."""
        words = [word for word in target.split("/") if word not in ("", ".")]
        ups = 0
        while ups < len(words) and words[ups] == "..":
            ups += 1
        if target.startswith("/") or not target or "\0" in target or ups > len(parts) - 1 or ".." in words[ups:]:
            raise _RefusedEntry(f"a link to {target!r}, which may lead out of the destination")
        with _replace(directory, parts[-1]) as temporary:
            os.symlink(target, temporary, dir_fd=directory)

    def add_hardlink(self, directory: int, parts: list[str], target: str) -> None:
        other = _split_name(target)
        if not other:
            raise _RefusedEntry("a link to nothing")
        with self.open_directory(other[:-1], make=False) as source, _replace(directory, parts[-1]) as temporary:
            try:
                facts = os.stat(other[-1], dir_fd=source, follow_symlinks=False)
                if not stat.S_ISREG(facts.st_mode):
                    raise _RefusedEntry("a hard link to something that is not a file")
                os.link(other[-1], temporary, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError as error:
                raise _RefusedEntry("a hard link to a missing file") from error

    def finish(self) -> None:
        """Set modes and times of directories once all their entries are written, the deepest first."""
        for name in sorted(self.directories, key=_depth, reverse=True):
            mode, mtime = self.directories[name]
            with contextlib.suppress(_RefusedEntry), self.open_directory(_split_name(name), make=False) as directory:
                os.fchmod(directory, mode)
                os.utime(directory, (mtime, mtime))


def _depth(name: str) -> int:
    return name.count("/") if name else -1


def _time(member: tarfile.TarInfo) -> float:
    """Return the modification time of an entry; the epoch for a time that a file cannot have."""
    return member.mtime if -LATEST < member.mtime < LATEST else 0.0


@contextlib.contextmanager
def _replace(directory: int, name: str) -> Iterator[str]:
    """Yield a temporary name that becomes `name` if the block succeeds, and is removed otherwise."""
    temporary = f".{secrets.token_hex(8)}.part"
    try:
        yield temporary
        if is_special(name, directory):
            raise _RefusedEntry("a device, FIFO or socket is in its place")
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except IsADirectoryError as error:
        raise _RefusedEntry("a directory is in its place") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)  # os.replace keeps it if both are links to one file


def is_special(path: str, directory: int | None = None) -> bool:
    """Check whether a path is something other than a file, directory or link, such as a device, which nothing may
    replace.
    """
    try:
        mode = os.stat(path, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))


def _split_name(name: str) -> list[str]:
    if name.startswith("/") or "\0" in name:
        raise _RefusedEntry("an absolute name")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _RefusedEntry("a name that leads out of the destination")
    if len(parts) > MAX_DEPTH:
        raise _RefusedEntry("too deep")
    return parts


def unpack(top: str, receive: Callable[[], bytes]) -> TreeCopied:
    """Write the entries of a tar stream below the directory `top`, which is created with its parents.

    Modes (without setuid, setgid and sticky bits), times and links inside the tree are kept; existing files are
    replaced. Entries that lead outside, devices and FIFOs are left out and named in `refused`.

    Raises:
        tarfile.ReadError: If the stream is not a whole tar stream.
        OSError: If the disk is full, or writing fails otherwise.
    """
    os.makedirs(top, exist_ok=True)
    descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    unpacker = _Unpacker(descriptor)
    try:
        source = _Source(receive)
        with tarfile.open(
            fileobj=cast("IO[bytes]", source),
            mode="r|",
            bufsize=BUFFER_BYTES,
            tarinfo=BoundedTarInfo,
            errors="surrogateescape",
        ) as archive:
            while (member := archive.next()) is not None:
                try:
                    unpacker.add_entry(archive, member)
                except _RefusedEntry as why:
                    unpacker.refuse(member.name, why)
                cast("Archive", archive).members.clear()
        unpacker.finish()
        while receive():
            pass
        return TreeCopied(unpacker.files, unpacker.bytes, tuple(unpacker.refused))
    except BaseException:
        unpacker.restore_modes()
        raise
    finally:
        unpacker.close()
        os.close(descriptor)
