"""Reading the headers of an untrusted tar stream in bounded memory and time."""

from __future__ import annotations

import contextlib
import tarfile
from typing import IO, Protocol, cast

MAX_HEADER_BYTES = 1 << 20
MAX_AHEAD = 16
MAX_DIGITS = 20
EXTENDED = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.XGLTYPE,
)


class Archive(Protocol):
    """Attributes of a TarFile that the standard library's stubs do not declare."""

    members: list[tarfile.TarInfo]
    fileobj: IO[bytes]
    offset: int


class BoundedTarInfo(tarfile.TarInfo):
    """A header that is read in bounded memory and time.

    tarfile bounds neither for extended headers (pax, sparse): it keeps global records forever, and parses fields with
    regular expressions that take quadratic time.
    """

    ahead = 0
    """Number of extended headers before this one that describe it."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size < 0 or (self.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) and self.size > MAX_HEADER_BYTES):
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a sparse file")
        if self.type not in EXTENDED:
            return super()._proc_member(archive)  # type: ignore[misc, no-any-return]
        source = cast("Archive", archive)
        data = source.fileobj.read(-(-self.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)[: self.size]
        member = self._next_member(archive)
        if self.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            text = data.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
            if self.type == tarfile.GNUTYPE_LONGLINK:
                member.linkname = text
            else:
                member.name = text.rstrip("/") if member.isdir() else text
        elif self.type != tarfile.XGLTYPE:
            _apply_records(member, data)
            if member.isreg() or member.type not in tarfile.SUPPORTED_TYPES:
                source.offset = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        return member

    def _next_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        """Return the header that this one describes."""
        if self.ahead >= MAX_AHEAD:
            raise tarfile.ReadError("too many extended headers in a row")
        try:
            block = cast("Archive", archive).fileobj.read(tarfile.BLOCKSIZE)
            member = type(self).frombuf(block, archive.encoding, archive.errors)
            member.offset, member.ahead = self.offset, self.ahead + 1
            return member._proc_member(archive)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"an extended header without a member: {error}") from error


def _apply_records(member: tarfile.TarInfo, records: bytes) -> None:
    """Apply the records of a pax header: `length key=value newline` each, where the length includes itself."""
    at = 0
    while at < len(records):
        digits, space, _ = records[at : at + MAX_DIGITS].partition(b" ")
        if not space or not digits.isdigit() or not len(digits) + 1 < int(digits) <= len(records) - at:
            raise tarfile.ReadError("an invalid extended header")
        key, _, value = records[at + len(digits) + 1 : at + int(digits) - 1].partition(b"=")
        at += int(digits)
        text = value.decode("utf-8", "surrogateescape")
        match key:
            case b"path":
                member.name = text.rstrip("/") if member.isdir() else text
            case b"linkpath":
                member.linkname = text
            case b"size" if len(value) < MAX_DIGITS and value.isdigit():
                member.size = int(value)
            case b"mtime":
                with contextlib.suppress(ValueError):
                    member.mtime = float(text)
            case b"size":
                raise tarfile.ReadError("an invalid size")
            case _ if key.startswith(b"GNU.sparse."):
                raise tarfile.ReadError("a sparse file")
