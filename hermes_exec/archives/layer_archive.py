"""Reading the archive of a layer, which `runner/internal/layers/archive_linux.go` describes, as hostile input."""

from __future__ import annotations

import base64
import binascii
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote_to_bytes

BLOCK = tarfile.BLOCKSIZE
MOST_HEADER_BYTES = 1 << 20
MOST_PARTS = 1 << 20
PIECE_BYTES = 1 << 20
SECONDS = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,9})?")
XATTR = "LIBARCHIVE.xattr."
OPAQUE = b"user.overlay.opaque"
ESCAPED = b"user.overlay.overlay."


class Source(Protocol):
    """A file that is read once."""

    def read(self, count: int = -1, /) -> bytes:
        """Return the next bytes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: its `name` is a path below the layer's directory, and "" for that directory itself.

    `kind` is "directory", "file", "link" (to the file with the number `link`), "symlink" (to `target`), "whiteout",
    "fifo" or "socket". `mtime` is seconds since 1970 as a decimal number. `number` is the number of a file with several
    names. `parts` has the offset and length of each part of a file with holes.
    """

    name: str
    kind: str
    mode: int
    uid: int
    gid: int
    mtime: str
    size: int
    target: str
    link: int | None
    number: int | None
    opaque: bool
    attributes: Mapping[bytes, bytes]
    parts: tuple[tuple[int, int], ...] | None


class ArchiveReader:
    """Reads the entries of an archive in order. The data of a file is read between its entry and the next one."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._left = self._padding = 0

    def entries(self) -> Iterator[Entry]:
        """Yield the entries. Raises ValueError if there is anything that a slot could not have made."""
        while True:
            for _ in self.data():
                pass
            self._exactly(self._padding)
            self._padding = 0
            if (entry := self._next()) is None:
                return
            yield entry

    def data(self) -> Iterator[bytes]:
        """Yield the data of the last entry's parts, piece by piece."""
        while self._left:
            piece = self._exactly(min(self._left, PIECE_BYTES))
            self._left -= len(piece)
            yield piece

    def _exactly(self, count: int) -> bytes:
        data = self._source.read(count) if count else b""
        if len(data) < count:
            raise ValueError("the archive is incomplete")
        return data

    def _header(self) -> tarfile.TarInfo | None:
        block = self._exactly(BLOCK)
        if block == b"\0" * BLOCK:
            return None
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise ValueError(f"a header is invalid ({error})") from None
        if header.size < 0:
            raise ValueError("a size is negative")
        return header

    def _next(self) -> Entry | None:
        if (header := self._header()) is None:
            return None
        records: dict[str, str] = {}
        if header.type == tarfile.XHDTYPE:
            if header.size > MOST_HEADER_BYTES:
                raise ValueError("a header is too large")
            records = _parse_records(self._exactly(header.size))
            self._exactly(-header.size % BLOCK)
            if (header := self._header()) is None:
                raise ValueError("the archive is incomplete")
        name, size = records.get("path", header.name), int(records.get("size", header.size))
        if header.type == tarfile.DIRTYPE:
            name = "" if name in {"./", "."} else name.removesuffix("/")
        parts_of_name = name.split("/")
        if name and (not all(parts_of_name) or {".", ".."} & set(parts_of_name) or "\0" in name):
            raise ValueError(f"{name!r} is no name in a layer")
        kind = _kind(header, records)
        if kind != "file" and size:
            raise ValueError(f"{name!r} has data")
        self._left, self._padding = size, -size % BLOCK
        attributes = _attributes(records)
        mtime = records.get("mtime", str(header.mtime))
        if not SECONDS.fullmatch(mtime):
            raise ValueError(f"the time of {name!r} is invalid")
        return Entry(
            name=name,
            kind=kind,
            mode=header.mode & 0o7777,
            uid=int(records.get("uid", header.uid)),
            gid=int(records.get("gid", header.gid)),
            mtime=mtime,
            size=int(records.get("HERMES.size", size)),
            target=records.get("linkpath", header.linkname) if kind == "symlink" else "",
            link=int(records.get("linkpath", header.linkname)) if kind == "link" else None,
            number=int(records["HERMES.link"]) if "HERMES.link" in records else None,
            opaque=attributes.pop(OPAQUE, None) is not None,
            attributes={
                name.replace(ESCAPED, b"user.overlay.", 1) if name.startswith(ESCAPED) else name: value
                for name, value in attributes.items()
            },
            parts=self._read_parts(records) if "HERMES.parts" in records else None,
        )

    def _read_parts(self, records: Mapping[str, str]) -> tuple[tuple[int, int], ...]:
        count, size = int(records["HERMES.parts"]), int(records.get("HERMES.size", "-1"))
        if not 0 <= count <= MOST_PARTS or count * 16 > self._left:
            raise ValueError("a file with holes is invalid")
        numbers = self._exactly(count * 16)
        self._left -= count * 16
        parts, end = [], 0
        for at in range(0, len(numbers), 16):
            begin, length = (int.from_bytes(numbers[at + i : at + i + 8], "big") for i in (0, 8))
            if begin < end or length == 0 or begin + length > size:
                raise ValueError("a file with holes is invalid")
            parts.append((begin, length))
            end = begin + length
        if sum(length for _, length in parts) != self._left:
            raise ValueError("a file with holes is invalid")
        return tuple(parts)


def _kind(header: tarfile.TarInfo, records: Mapping[str, str]) -> str:
    kinds = {
        tarfile.REGTYPE: "file",
        tarfile.DIRTYPE: "directory",
        tarfile.SYMTYPE: "symlink",
        tarfile.LNKTYPE: "link",
        tarfile.FIFOTYPE: "socket" if records.get("HERMES.type") == "socket" else "fifo",
    }
    if header.type == tarfile.CHRTYPE and (header.devmajor, header.devminor) == (0, 0):
        return "whiteout"
    if header.type not in kinds:
        raise ValueError(f"{header.name!r} is a device or of an unknown type")
    return kinds[header.type]


def _parse_records(data: bytes) -> dict[str, str]:
    records = {}
    while data:
        length, space, _ = data.partition(b" ")
        if not space or not length.isdigit() or len(length) > 8 or not len(length) + 3 < int(length) <= len(data):
            raise ValueError("a header is invalid")
        record, data = data[len(length) + 1 : int(length)], data[int(length) :]
        key, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise ValueError("a header is invalid")
        records[key.decode("utf-8", "surrogateescape")] = value[:-1].decode("utf-8", "surrogateescape")
    return records


def _attributes(records: Mapping[str, str]) -> dict[bytes, bytes]:
    attributes = {}
    for key, value in records.items():
        if key.startswith(XATTR):
            try:
                attributes[unquote_to_bytes(key.removeprefix(XATTR))] = base64.b64decode(value, validate=True)
            except binascii.Error:
                raise ValueError("an extended attribute is invalid") from None
    return attributes
