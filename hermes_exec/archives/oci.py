"""OCI images of a base image and the layers of a checkpoint, in plain Python."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, BinaryIO

from hermes_exec.archives.checkpoint_file import CheckpointReader
from hermes_exec.archives.layer_archive import PIECE_BYTES, ArchiveReader, Entry
from hermes_exec.errors import ConfigError

MOST_HOLE_BYTES = 1 << 30
MOST_JSON_BYTES = 16 << 20
MOST_REPORTED = 1000
WHITEOUT = ".wh."
OPAQUE_MARK = ".wh..wh..opq"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True, slots=True)
class Blob:
    """A file of the image, by its digest."""

    digest: str
    size: int
    media_type: str

    def to_json(self) -> dict[str, object]:
        """Return its descriptor."""
        return {"mediaType": self.media_type, "digest": f"sha256:{self.digest}", "size": self.size}


def export_image(
    file: str | os.PathLike[str], target: str | os.PathLike[str], base: str | os.PathLike[str]
) -> list[str]:
    """Write an image of a base image and the layers of a checkpoint's file; blocking.

    `target` is a new file whose name ends with `.tar`, which `docker load`, podman, skopeo and Apptainer read, or a new
    directory with an OCI layout. `base` is a tar of `docker save`, or a tar or directory with an OCI layout; it has to
    be the image of the checkpoint. The image's WORKDIR is the directory of the checkpoint.

    Returns:
        What an image cannot hold: the paths of names that begin with `.wh.`, sockets, files with holes (with zeros in
        their place, and without files that have more than 1 GiB of holes) and times before 1970; the first 1,000.

    Raises:
        ConfigError: If a file is not of a checkpoint or image, or is damaged; the message has the name of the entry.
        OSError: If a file cannot be read or written. Nothing is left then.
    """
    path = Path(target)
    if path.exists():
        raise FileExistsError(errno.EEXIST, "It exists: name a new file or directory", str(path))
    directory = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    whole = path.with_name(f"{directory.name}.tar")
    try:
        (directory / "blobs" / "sha256").mkdir(parents=True)
        with CheckpointReader(file) as reader:
            validate_holds(reader.facts.holds, str(reader.path))
            reader.verify()
            left_out = _write_layout(reader, directory, Path(base))
        if path.suffix == ".tar":
            with tarfile.open(whole, "x", format=tarfile.GNU_FORMAT) as archive:
                archive.add(directory, "")
            os.rename(whole, path)
        else:
            os.rename(directory, path)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        whole.unlink(missing_ok=True)
    return left_out


def validate_holds(holds: str, name: str) -> None:
    """Raise ConfigError if a checkpoint with this name holds directories, which are no change of an image."""
    if holds != "root":
        raise ConfigError(
            f"{name} holds directories of a slot, not the changes of an image. Make a checkpoint of a slot with a root "
            "of its own (backend 'docker' or 'singularity', slot_root='own')"
        )


def _write_layout(reader: CheckpointReader, directory: Path, base: Path) -> list[str]:
    blobs = directory / "blobs" / "sha256"
    config, layers = _copy_base(base, blobs)
    left_out: list[str] = []
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for number in range(len(reader.facts.layers)):
        with _new_blob(blobs, LAYER) as (out, done):
            _write_layer(reader, number, out, left_out)
        layers.append(done[0])
        config["rootfs"]["diff_ids"].append(f"sha256:{done[0].digest}")
        config.setdefault("history", []).append({"created": now, "created_by": "hermes-exec checkpoint"})
    config["created"] = now
    config["config"] = {**(config.get("config") or {}), "WorkingDir": reader.facts.workdir}
    config_blob = _put(blobs, json.dumps(config).encode(), CONFIG)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config_blob.to_json(),
        "layers": [layer.to_json() for layer in layers],
    }
    entry = _put(blobs, json.dumps(manifest).encode(), MANIFEST)
    index = {"schemaVersion": 2, "manifests": [entry.to_json()]}
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (directory / "index.json").write_text(json.dumps(index))
    paths = [f"blobs/sha256/{layer.digest}" for layer in layers]
    docker = [{"Config": f"blobs/sha256/{config_blob.digest}", "RepoTags": None, "Layers": paths}]
    (directory / "manifest.json").write_text(json.dumps(docker))
    return left_out


# Layers.


def _write_layer(reader: CheckpointReader, layer: int, out: IO[bytes], left_out: list[str]) -> None:
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        archive.copybufsize = PIECE_BYTES  # type: ignore[attr-defined]
        for part in sorted((each for each in reader.parts if each.layer == layer), key=lambda each: each.directory):
            source = ArchiveReader(reader.open(part))
            writer = _LayerWriter(archive, part.directory.strip("/"), left_out)
            try:
                for entry in source.entries():
                    writer.add(entry, source)
            except ValueError as error:
                raise ConfigError(
                    f"{reader.path} cannot be used, because of its entry {part.name!r}: {error}"
                ) from None


class _LayerWriter:
    """Writes the entries of the changes to one directory into the tar of an OCI layer."""

    def __init__(self, archive: tarfile.TarFile, directory: str, left_out: list[str]) -> None:
        self._archive, self._directory, self._left_out = archive, directory, left_out
        self._names: dict[int, str] = {}

    def add(self, entry: Entry, source: ArchiveReader) -> None:
        path = "/".join(filter(None, (self._directory, entry.name)))
        parent, _, name = path.rpartition("/")
        if entry.kind == "whiteout":
            self._archive.addfile(tarfile.TarInfo(f"{parent}/{WHITEOUT}{name}".lstrip("/")))
            return
        if name.startswith(WHITEOUT):
            self._report(path, "names that begin with .wh. mark removed files in an image")
            return
        if entry.kind == "socket":
            self._report(path, "a socket")
            return
        info = self._info(entry, path)
        if entry.kind == "link":
            if (first := self._names.get(entry.link or 0)) is None:
                raise ValueError(f"{path!r} is a link to nothing")
            info.linkname = first
        if entry.kind == "file":
            self._add_file(entry, info, source)
            return
        self._archive.addfile(info)
        if entry.opaque:
            self._archive.addfile(tarfile.TarInfo(f"{path}/{OPAQUE_MARK}".lstrip("/")))

    def _info(self, entry: Entry, path: str) -> tarfile.TarInfo:
        info = tarfile.TarInfo(path or "./")
        types = {
            "directory": tarfile.DIRTYPE,
            "file": tarfile.REGTYPE,
            "symlink": tarfile.SYMTYPE,
            "link": tarfile.LNKTYPE,
            "fifo": tarfile.FIFOTYPE,
        }
        info.type, info.linkname = types[entry.kind], entry.target
        info.mode, info.uid, info.gid = entry.mode, entry.uid, entry.gid
        if early := entry.mtime.startswith("-"):
            self._report(path, "its time is before 1970")
        # Not as a number, which would be rounded.
        info.pax_headers = {"mtime": "0" if early else entry.mtime} | {
            f"SCHILY.xattr.{name.decode('utf-8', 'surrogateescape')}": value.decode("utf-8", "surrogateescape")
            for name, value in entry.attributes.items()
        }
        return info

    def _add_file(self, entry: Entry, info: tarfile.TarInfo, source: ArchiveReader) -> None:
        if entry.parts is not None:
            holes = entry.size - sum(length for _, length in entry.parts)
            if holes > MOST_HOLE_BYTES:
                self._report(info.name, f"{holes} bytes of holes, and the file")
                return
            self._report(info.name, f"{holes} bytes of holes, which are zeros in the image")
        info.size = entry.size
        if entry.number is not None:
            self._names[entry.number] = info.name
        self._archive.addfile(info, _Filled(source.data(), entry))

    def _report(self, path: str, why: str) -> None:
        if len(self._left_out) < MOST_REPORTED:
            self._left_out.append(f"/{path}: {why}")


class _Filled:
    """The contents of a file, with zeros in its holes."""

    def __init__(self, data: Iterator[bytes], entry: Entry) -> None:
        self._pieces = self._fill(data, entry)
        self._rest = b""

    @staticmethod
    def _fill(data: Iterator[bytes], entry: Entry) -> Iterator[bytes]:
        if entry.parts is None:
            yield from data
            return
        at, rest = 0, b""
        for begin, length in (*entry.parts, (entry.size, 0)):
            while at < begin:
                zeros = bytes(min(begin - at, PIECE_BYTES))
                at += len(zeros)
                yield zeros
            while length:
                rest = rest or next(data)
                piece, rest = rest[:length], rest[length:]
                length -= len(piece)
                at += len(piece)
                yield piece

    def read(self, count: int = -1) -> bytes:
        while len(self._rest) < count and (piece := next(self._pieces, b"")):
            self._rest += piece
        data, self._rest = self._rest[:count], self._rest[count:]
        return data


# The base image.


def _copy_base(base: Path, blobs: Path) -> tuple[dict[str, Any], list[Blob]]:
    """Copy the layers of an image, and return its configuration and them.

    Raises:
        ConfigError: If it is no image that is supported.
    """
    image = _Directory(base) if base.is_dir() else _Tar(base)
    with contextlib.closing(image):
        if image.has("index.json"):
            manifest = _manifest(image, base)
            config = image.json(_path(manifest.get("config"), base))
            layers = [(_path(layer, base), str(layer.get("mediaType"))) for layer in manifest.get("layers") or ()]
        elif image.has("manifest.json"):
            described = image.json("manifest.json")
            if not isinstance(described, list) or len(described) != 1:
                raise ConfigError(f"{base} has to hold exactly one image: save one by `docker save NAME -o FILE`")
            config = image.json(str(described[0]["Config"]))
            layers = [(str(name), LAYER) for name in described[0]["Layers"]]
        else:
            raise ConfigError(f"{base} is neither a tar of `docker save` nor an OCI layout")
        if not isinstance(config, dict) or not isinstance(config.get("rootfs"), dict):
            raise ConfigError(f"{base} has no configuration of an image")
        copies = []
        for name, media_type in layers:
            with image.open(name) as source, _new_blob(blobs, media_type) as (out, done):
                shutil.copyfileobj(source, out, PIECE_BYTES)
            copies.append(done[0])
        return config, copies


def _manifest(image: _Directory | _Tar, base: Path) -> dict[str, Any]:
    index = image.json("index.json")
    for _ in range(3):  # an index may lead to an index of platforms
        entries = [each for each in index.get("manifests") or () if _is_image(each)] if isinstance(index, dict) else []
        if len(entries) != 1:
            raise ConfigError(f"{base} has to hold exactly one image, and has {len(entries)}")
        index = image.json(_path(entries[0], base))
        if isinstance(index, dict) and "layers" in index:
            return index
    raise ConfigError(f"{base} has no manifest of an image")


def _is_image(entry: object) -> bool:
    platform = entry.get("platform") if isinstance(entry, dict) else None
    return not isinstance(platform, dict) or platform.get("architecture") != "unknown"


def _path(descriptor: object, base: Path) -> str:
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    kind, _, name = digest.partition(":") if isinstance(digest, str) else ("", "", "")
    if kind != "sha256" or len(name) != 64 or not set(name) <= set("0123456789abcdef"):
        raise ConfigError(f"{base} has no digest where one must be: {digest!r}")
    return f"blobs/sha256/{name}"


class _Directory:
    """An OCI layout in a directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, name: str) -> bool:
        return (self._path / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        return (self._path / name).open("rb")

    def json(self, name: str) -> Any:  # noqa: ANN401 - checked by the callers
        with self.open(name) as file:
            try:
                return json.loads(file.read(MOST_JSON_BYTES))
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{self._path} cannot be used, because of its entry {name!r}: {error}") from None

    def close(self) -> None:
        return


class _Tar(_Directory):
    """An image in a tar."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        if path.exists() and not path.is_file():  # a FIFO would be opened without end
            raise ConfigError(f"{path} is no tar of an image: it is a device, FIFO or socket")
        try:
            self._archive = tarfile.open(path)  # noqa: SIM115
        except tarfile.TarError as error:
            reason = str(error).partition("\n")[0].rstrip(":")  # the others are one for each compression
            raise ConfigError(f"{path} is no tar of an image: {reason}") from error

    def has(self, name: str) -> bool:
        return name in self._archive.getnames() or f"./{name}" in self._archive.getnames()

    def open(self, name: str) -> IO[bytes]:
        for spelling in (name, f"./{name}"):
            with contextlib.suppress(KeyError):
                if (file := self._archive.extractfile(spelling)) is not None:
                    return file
        raise ConfigError(f"{self._path} has no entry {name!r}")

    def close(self) -> None:
        self._archive.close()


# Blobs.


class _Hashing:
    """A file that is hashed while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.hash, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        self.size += len(data)
        return self._file.write(data)


@contextlib.contextmanager
def _new_blob(blobs: Path, media_type: str) -> Iterator[tuple[IO[bytes], list[Blob]]]:
    """Write a new blob; when the block has ended, the list has it."""
    temporary = blobs / secrets.token_hex(8)
    done: list[Blob] = []
    with temporary.open("xb") as file:
        hashing = _Hashing(file)
        yield hashing, done  # type: ignore[misc]
    done.append(Blob(hashing.hash.hexdigest(), hashing.size, media_type))
    temporary.rename(blobs / done[0].digest)


def _put(blobs: Path, data: bytes, media_type: str) -> Blob:
    with _new_blob(blobs, media_type) as (out, done):
        out.write(data)
    return done[0]
