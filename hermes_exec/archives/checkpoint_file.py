"""The file of a checkpoint (`.hxcp`): a tar of `checkpoint.json`, an archive for each directory of each layer, and
`SHA256SUMS` with the digest of each of them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, NamedTuple, Self

from hermes_exec.errors import ConfigError

FORMAT = "hermes-exec checkpoint"
VERSION = 1
FACTS_NAME = "checkpoint.json"
SUMS_NAME = "SHA256SUMS"
"""The last entry, in the format of `sha256sum`."""
MOST_FACTS_BYTES = 64 << 20
PIECE_BYTES = 1 << 20
MOST_LAYERS = 200
ROLES = ("workspace", "home", "tmp", "var-tmp")
"""The directories of a slot without a root of its own, by the names that they have in files and on the wire."""
BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the slot of a checkpoint of directories had them.

    `paths` has those of `ROLES` that are at the same path in each slot. The others are in `dir`, the slot's own
    directory on its host, with which the working directory and paths in sessions may begin.
    """

    dir: str
    paths: Mapping[str, str]

    @classmethod
    def parse(cls, value: object) -> Origin:
        """Parse the part of `checkpoint.json`. Raises ValueError."""
        place, paths = (value.get("dir"), value.get("paths")) if isinstance(value, dict) else (None, None)
        if not isinstance(place, str) or not isinstance(paths, dict) or not {*paths} <= {*ROLES}:
            raise ValueError("origin is no description of a slot's directories")
        if not all(isinstance(path, str) and path.startswith("/") for path in (place, *paths.values())):
            raise ValueError("origin has a path that is not absolute")
        return cls(place, paths)


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """The contents of `checkpoint.json`.

    `image_id` is the engine's id of the image, and `setup` a digest of the commands that had prepared its sandbox.
    `layers` has the directories that each layer changes, the oldest first; of a checkpoint that holds directories, the
    only layer has `ROLES`, and `origin` is not None. `sessions` has, by their names in the
    layers' sandbox, the ids and states of shell sessions, without variables.
    """

    image: str | None
    image_id: str
    setup: str
    workdir: str
    holds: Literal["root", "directories"]
    left_out: tuple[str, ...]
    on_fork: tuple[str, ...]
    layers: tuple[tuple[str, ...], ...]
    sessions: Mapping[str, Mapping[str, Any]] = field(repr=False)
    origin: Origin | None = None

    def to_json(self) -> bytes:
        """Return the bytes of `checkpoint.json`."""
        facts = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps(facts, indent=1, ensure_ascii=True).encode()

    @classmethod
    def parse(cls, data: bytes) -> CheckpointFacts:
        """Parse `checkpoint.json`. Raises ValueError that names the field that is wrong."""
        facts = json.loads(data)
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            raise ValueError("it is not the description of a checkpoint")
        if facts.get("version") != VERSION:
            raise ValueError(f"its version is {facts.get('version')!r}, and this program reads version {VERSION}")
        if not isinstance(facts.get("image", 0), str | None):
            raise ValueError("image is no text")
        for name in ("image_id", "setup", "workdir", "holds"):
            if not isinstance(facts.get(name), str):
                raise ValueError(f"{name} is no text")
        layers, sessions = facts.get("layers"), facts.get("sessions")
        if not isinstance(layers, list) or len(layers) > MOST_LAYERS:
            raise ValueError(f"layers is no list of at most {MOST_LAYERS}")
        if not isinstance(sessions, dict) or not all(
            isinstance(each, dict) and isinstance(each.get("id"), str) and isinstance(each.get("state"), dict)
            for each in sessions.values()
        ):
            raise ValueError("sessions is no mapping of states")
        directories = tuple(_texts({"layers": layer}, "layers") for layer in layers)
        _check_layers(facts["holds"], directories)
        return cls(
            image=facts["image"],
            image_id=facts["image_id"],
            setup=facts["setup"],
            workdir=facts["workdir"],
            holds=facts["holds"],
            left_out=_texts(facts, "left_out"),
            on_fork=_texts(facts, "on_fork"),
            layers=directories,
            sessions=sessions,
            origin=Origin.parse(facts.get("origin")) if facts["holds"] == "directories" else None,
        )

    def part_names(self) -> Iterator[tuple[int, int, str]]:
        """Yield the layer, the number of the directory and the name of the entry of each part, in order."""
        for layer, directories in enumerate(self.layers):
            for number in range(len(directories)):
                yield layer, number, f"layers/{layer}/{number}.tar"


def _check_layers(holds: str, layers: tuple[tuple[str, ...], ...]) -> None:
    """Raise ValueError for directories that a checkpoint of this kind cannot have."""
    if holds not in {"root", "directories"}:
        raise ValueError(f"holds is {holds!r}, and neither 'root' nor 'directories'")
    for layer in layers:
        if holds == "root" and not all(each.startswith("/") for each in layer):
            raise ValueError("layers has a directory of the root that is not absolute")
    if holds == "directories" and (len(layers) != 1 or sorted(layers[0]) != sorted(ROLES)):
        raise ValueError(f"layers is not one layer with {', '.join(ROLES)}")


def _texts(facts: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = facts.get(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name} is no list of texts")
    return tuple(values)


def validate_target(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that can be written. Raises OSError if it is no file, or its directory is missing."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "A directory: name a file", str(target))
    if target.exists() and not target.is_file():
        raise FileExistsError(errno.EEXIST, "A device, FIFO or socket is not replaced: name a file", str(target))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such directory: make it first", str(target.parent))
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(errno.EACCES, "The directory cannot be written", str(target.parent))
    return target


class CheckpointWriter:
    """Writes the file of a checkpoint; blocking. It gets its name by `commit`; without that, nothing is left."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = validate_target(path)
        self._temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}.part")
        self._file: BinaryIO = open(self._temporary, "xb", opener=_open_private)  # noqa: SIM115
        self._began = 0
        self._digest = hashlib.sha256()
        self._sums: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # what a full disk did not take is not needed any more
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def write_facts(self, facts: CheckpointFacts) -> None:
        """Write `checkpoint.json`, which has to be first."""
        self.begin(FACTS_NAME)
        self.write(facts.to_json())
        self.end(FACTS_NAME)

    def begin(self, name: str) -> None:
        """Begin an entry. Its header is written by `end`, when its size is known."""
        self._began = self._file.seek(0, os.SEEK_END)
        self._digest = hashlib.sha256()
        self._file.write(_header(name, 0))

    def write(self, data: bytes) -> None:
        """Write bytes of the entry."""
        self._digest.update(data)
        self._file.write(data)

    def end(self, name: str) -> None:
        """Complete an entry."""
        self._sums.append(f"{self._digest.hexdigest()}  {name}\n")
        size = self._file.tell() - self._began - BLOCK
        self._file.write(b"\0" * (-size % BLOCK))
        self._file.seek(self._began)
        self._file.write(_header(name, size))
        self._file.seek(0, os.SEEK_END)

    def commit(self) -> None:
        """Write `SHA256SUMS`, complete the file and give it its name."""
        sums = "".join(self._sums).encode()
        self.begin(SUMS_NAME)
        self.write(sums)
        self.end(SUMS_NAME)
        self._file.write(b"\0" * 2 * BLOCK)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._temporary, self._path)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    return entry.tobuf(tarfile.GNU_FORMAT)


class Part(NamedTuple):
    """The archive of a layer's changes to one directory: its place in the file, and its SHA-256 in `SHA256SUMS`."""

    layer: int
    directory: str
    name: str
    offset: int
    size: int
    digest: str


class CheckpointReader:
    """Reads the file of a checkpoint; blocking. Nothing in it is trusted, and nothing of it is unpacked.

    Raises:
        OSError: If it cannot be read.
        ConfigError: If it is no file of a checkpoint; the message has the name of the entry.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_file():  # a FIFO would be opened without end
            raise ConfigError(f"{self.path} is no file of a checkpoint: it is a directory, device, FIFO or socket")
        self._file: BinaryIO = self.path.open("rb")
        try:
            self._length = os.fstat(self._file.fileno()).st_size
            data, end = self._read_entry(0, FACTS_NAME)
            try:
                self.facts = CheckpointFacts.parse(data)
            except (ValueError, RecursionError) as error:
                raise self._error(FACTS_NAME, str(error)) from None
            self.parts = self._read_parts(end, hashlib.sha256(data).hexdigest())
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self, part: Part, offset: int, count: int) -> bytes:
        """Return at most `count` bytes of a part, from `offset` on; b"" at its end."""
        self._file.seek(part.offset + offset)
        return self._file.read(max(0, min(count, part.size - offset)))

    def open(self, part: Part) -> PartFile:
        """Return a part as a file without a name."""
        return PartFile(self, part)

    def verify(self, check: Callable[[], None] = lambda: None) -> None:
        """Read all parts, and compare them with `SHA256SUMS`. `check` is called between pieces; its errors end it.

        Raises:
            ConfigError: If a part has other bytes than when the file was written; the message has its name.
        """
        for part in self.parts:
            digest, source = hashlib.sha256(), self.open(part)
            while piece := source.read(PIECE_BYTES):
                check()
                digest.update(piece)
            if digest.hexdigest() != part.digest:
                raise self._damage_error(part.name)

    def _damage_error(self, name: str) -> ConfigError:
        return ConfigError(
            f"{self.path} is damaged: its entry {name!r} does not have the digest of {SUMS_NAME}. Copy the file again, "
            "or save the checkpoint again"
        )

    def _error(self, name: str, problem: str) -> ConfigError:
        return ConfigError(f"{self.path} is no complete file of a checkpoint, because of its entry {name!r}: {problem}")

    def _read_header(self, at: int, name: str) -> int:
        """Check the header at a position, which must be of a file of this name, and return its size."""
        self._file.seek(at)
        block = self._file.read(BLOCK)
        if len(block) < BLOCK:
            raise self._error(name, "the file ends before it")
        try:
            entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise self._error(name, f"it has no header of a tar ({error})") from None
        if entry.name != name or entry.type != tarfile.REGTYPE:
            raise self._error(entry.name, f"a file {name!r} must be here")
        if entry.size < 0 or entry.size > self._length - at - BLOCK:
            raise self._error(name, "the file ends in it")
        return entry.size

    def _read_entry(self, at: int, name: str) -> tuple[bytes, int]:
        """Return the bytes of a short entry, and the position of the next one."""
        size = self._read_header(at, name)
        if size > MOST_FACTS_BYTES:
            raise self._error(name, "it is too large")
        return self._file.read(size), at + BLOCK + size + -size % BLOCK

    def _read_parts(self, at: int, facts_digest: str) -> tuple[Part, ...]:
        places: list[tuple[int, str, str, int, int]] = []
        for layer, number, name in self.facts.part_names():
            size = self._read_header(at, name)
            places.append((layer, self.facts.layers[layer][number], name, at + BLOCK, size))
            at += BLOCK + size + -size % BLOCK
        data, at = self._read_entry(at, SUMS_NAME)
        self._file.seek(at)
        if self._file.read(2 * BLOCK) != b"\0" * 2 * BLOCK:
            raise self._error("the end", "two empty blocks must be here")
        names, lines = [FACTS_NAME, *(place[2] for place in places)], data.decode("ascii", "replace").splitlines()
        if [line[64:] for line in lines] != [f"  {name}" for name in names]:
            raise self._error(SUMS_NAME, "it has no digest for each entry")
        digests = [line[:64] for line in lines]
        if digests[0] != facts_digest:
            raise self._damage_error(FACTS_NAME)
        return tuple(Part(*place, digest) for place, digest in zip(places, digests[1:], strict=True))


class PartFile:
    """A part of a checkpoint as a file that is read once."""

    def __init__(self, reader: CheckpointReader, part: Part) -> None:
        self._reader, self._part, self._at = reader, part, 0

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes."""
        data = self._reader.read(self._part, self._at, self._part.size if count < 0 else count)
        self._at += len(data)
        return data
