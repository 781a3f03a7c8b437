"""Files of checkpoints: what was written is read, and everything else is refused with the name of the entry."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hermes_exec import ConfigError
from hermes_exec.archives.checkpoint_file import (
    ROLES,
    CheckpointFacts,
    CheckpointReader,
    CheckpointWriter,
    Origin,
)
from hermes_exec.archives.oci import export_image

FACTS = CheckpointFacts(
    image="debian:12",
    image_id="sha256:1",
    setup="",
    workdir="/workspace",
    holds="root",
    left_out=("processes and their memory",),
    on_fork=("redis-server &",),
    layers=(("/", "/usr"), (), ("/",)),
    sessions={"s1": {"id": "x", "state": {"cwd": "/"}}},
)
PARTS = {"layers/0/0.tar": b"a" * 1000, "layers/0/1.tar": b"", "layers/2/0.tar": bytes(range(256)) * 8}


def write(path: Path, facts: CheckpointFacts = FACTS) -> None:
    with CheckpointWriter(path) as writer:
        writer.write_facts(facts)
        for name, data in PARTS.items():
            writer.begin(name)
            for start in range(0, len(data), 300):
                writer.write(data[start : start + 300])
            writer.end(name)
        writer.commit()


def test_written_file_is_read_and_is_a_tar(tmp_path: Path) -> None:
    path = tmp_path / "x.hxcp"
    path.write_text("older")
    write(path)
    with CheckpointReader(path) as reader:
        assert reader.facts == FACTS
        reader.verify()
        assert {part.name: reader.open(part).read() for part in reader.parts} == PARTS
        assert [part.directory for part in reader.parts] == ["/", "/usr", "/"]
        pieces = reader.open(reader.parts[2])
        assert b"".join(iter(lambda: pieces.read(100), b"")) == PARTS["layers/2/0.tar"]
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["checkpoint.json", *PARTS, "SHA256SUMS"]
        archive.extractall(tmp_path / "unpacked", filter="data")
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path / "unpacked", check=True)
    assert path.stat().st_mode & 0o077 == 0
    assert {each.name for each in tmp_path.iterdir()} == {"x.hxcp", "unpacked"}


def test_file_of_directories_says_where_they_were_and_is_no_image(tmp_path: Path) -> None:
    path, origin = tmp_path / "x.hxcp", Origin("/slots/s1", {"tmp": "/tmp", "var-tmp": "/var/tmp"})
    written = replace(FACTS, image=None, holds="directories", layers=(ROLES,), origin=origin)
    with CheckpointWriter(path) as writer:
        writer.write_facts(written)
        for _, _, name in written.part_names():
            writer.begin(name)
            writer.end(name)
        writer.commit()
    with CheckpointReader(path) as reader:
        assert reader.facts == written
        assert [part.directory for part in reader.parts] == list(ROLES)
    with pytest.raises(ConfigError, match="root of its own"):
        export_image(path, tmp_path / "image.tar", path)
    assert list(tmp_path.iterdir()) == [path]


def test_fifo_is_neither_replaced_nor_opened(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "link").symlink_to(fifo)
    write(tmp_path / "x.hxcp")
    for path in (fifo, tmp_path / "link"):
        with pytest.raises(FileExistsError, match="FIFO"):
            write(path)
        with pytest.raises(ConfigError, match="FIFO"):
            CheckpointReader(path)
        with pytest.raises(ConfigError, match="FIFO"):
            export_image(tmp_path / "x.hxcp", tmp_path / "image.tar", path)
    assert fifo.is_fifo()
    assert {path.name for path in tmp_path.iterdir()} == {"fifo", "link", "x.hxcp"}


def test_file_that_is_not_committed_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.hxcp"
    path.write_text("older")
    with pytest.raises(KeyError), CheckpointWriter(path) as writer:
        writer.write_facts(FACTS)
        raise KeyError
    assert [each.read_text() for each in tmp_path.iterdir()] == ["older"]
    with pytest.raises(IsADirectoryError):
        CheckpointWriter(tmp_path)
    with pytest.raises(FileNotFoundError):
        CheckpointWriter(tmp_path / "missing" / "x")


def archive(*entries: tuple[str, bytes, dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data, fields in entries:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            for field, value in fields.items():
                setattr(entry, field, value)
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def facts(**changes: object) -> bytes:
    return json.dumps({**json.loads(FACTS.to_json()), "layers": [["/"]], **changes}).encode()


def held(**changes: object) -> bytes:
    origin = {"dir": "/slots/s1", "paths": {}}
    return facts(**{"holds": "directories", "layers": [[*ROLES]], "origin": origin, **changes})


LINK = {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd", "size": 0}
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "checkpoint.json"),
    "no tar": (b"x" * 4096, "checkpoint.json"),
    "another first entry": (archive(("../../evil", b"x", {})), "../../evil"),
    "a link": (archive(("checkpoint.json", b"", LINK)), "checkpoint.json"),
    "no json": (archive(("checkpoint.json", b"{", {})), "checkpoint.json"),
    "nested json": (archive(("checkpoint.json", b"[" * 100_000, {})), "checkpoint.json"),
    "no checkpoint": (archive(("checkpoint.json", b"{}", {})), "not the description"),
    "a later version": (archive(("checkpoint.json", facts(version=2), {})), "version is 2"),
    "no image": (archive(("checkpoint.json", facts(image=1), {})), "image is no text"),
    "another name": (archive(("checkpoint.json", facts().replace(b'"image"', b'"imagf"'), {})), "image is no text"),
    "no workdir": (archive(("checkpoint.json", facts(workdir=None), {})), "workdir"),
    "many layers": (archive(("checkpoint.json", facts(layers=[[]] * 201), {})), "layers"),
    "layers of numbers": (archive(("checkpoint.json", facts(layers=[[1]]), {})), "layers"),
    "another kind": (archive(("checkpoint.json", facts(holds="all"), {})), "holds is 'all'"),
    "a root of directories": (archive(("checkpoint.json", facts(layers=[["workspace"]]), {})), "not absolute"),
    "directories of a root": (archive(("checkpoint.json", held(layers=[["/"]]), {})), "one layer with workspace"),
    "two layers of directories": (archive(("checkpoint.json", held(layers=[[*ROLES]] * 2), {})), "one layer with"),
    "a directory twice": (archive(("checkpoint.json", held(layers=[[*ROLES, "tmp"]]), {})), "one layer with"),
    "no origin": (archive(("checkpoint.json", held(origin=None), {})), "origin is no description"),
    "an origin elsewhere": (archive(("checkpoint.json", held(origin={"dir": "x", "paths": {}}), {})), "not absolute"),
    "a directory of others": (
        archive(("checkpoint.json", held(origin={"dir": "/x", "paths": {"etc": "/etc"}}), {})),
        "origin is no description",
    ),
    "sessions of texts": (archive(("checkpoint.json", facts(sessions={"a": "b"}), {})), "sessions"),
    "a layer is missing": (archive(("checkpoint.json", facts(), {})), "layers/0/0.tar"),
    "a layer elsewhere": (archive(("checkpoint.json", facts(), {}), ("/etc/passwd", b"", {})), "/etc/passwd"),
    "a layer is a link": (archive(("checkpoint.json", facts(), {}), ("layers/0/0.tar", b"", LINK)), "layers/0/0.tar"),
    "no digests": (archive(("checkpoint.json", facts(layers=[]), {})), "SHA256SUMS"),
    "a digest too few": (
        archive(("checkpoint.json", facts(layers=[]), {}), ("SHA256SUMS", b"", {})),
        "SHA256SUMS.*no digest for each entry",
    ),
    "digests of others": (
        archive(("checkpoint.json", facts(layers=[]), {}), ("SHA256SUMS", b"0" * 64 + b"  /etc/passwd\n", {})),
        "SHA256SUMS.*no digest for each entry",
    ),
    "large digests": (
        archive(("checkpoint.json", facts(layers=[]), {}), ("SHA256SUMS", b"0" * ((64 << 20) + 1), {})),
        "SHA256SUMS.*too large",
    ),
    "another entry": (
        archive(("checkpoint.json", facts(layers=[]), {}), ("SHA256SUMS", b"", {}), ("more", b"", {})),
        "the end",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused_with_the_name_of_the_entry(name: str, tmp_path: Path) -> None:
    data, named = HOSTILE[name]
    path = tmp_path / "x.hxcp"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=named) as caught:
        CheckpointReader(path)
    assert str(path) in str(caught.value)
    assert list(tmp_path.iterdir()) == [path]


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.hxcp"
    write(path)
    data = path.read_bytes()
    for size in range(0, len(data), 100):
        path.write_bytes(data[:size])
        with pytest.raises(ConfigError, match="because of its entry"):
            CheckpointReader(path)


def test_size_beyond_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.hxcp"
    write(path, replace(FACTS, layers=(("/",),)))
    entry = tarfile.TarInfo("checkpoint.json")
    entry.size = 1 << 60
    grown: Callable[[bytes], bytes] = lambda data: entry.tobuf(tarfile.GNU_FORMAT) + data[512:]  # noqa: E731
    path.write_bytes(grown(path.read_bytes()))
    with pytest.raises(ConfigError, match="the file ends in it"):
        CheckpointReader(path)


def read_all(path: Path) -> None:
    with CheckpointReader(path) as reader:
        reader.verify()


def test_damaged_byte_is_found_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.hxcp"
    write(path)
    data = path.read_bytes()
    with CheckpointReader(path) as reader:
        places = {part.name: range(part.offset, part.offset + part.size) for part in reader.parts}
    places["checkpoint.json"] = range(512, 512 + len(FACTS.to_json()))
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        if any(at in place for place in places.values()):
            with pytest.raises(ConfigError, match=str(path)):
                read_all(path)
        else:  # in headers, between entries, or in the digests: an error, or the same contents
            with contextlib.suppress(ConfigError), CheckpointReader(path) as reader:
                assert reader.facts == FACTS
                assert {part.name: reader.open(part).read() for part in reader.parts} == PARTS
    for name, place in places.items():
        if place and name != "checkpoint.json":
            at = place[700]
            path.write_bytes(data[:at] + bytes([data[at] ^ 128]) + data[at + 1 :])
            with pytest.raises(ConfigError, match=f"is damaged: its entry '{name}'"):
                read_all(path)
            with pytest.raises(ConfigError, match=f"is damaged: its entry '{name}'"):
                export_image(path, tmp_path / "image.tar", tmp_path / "base.tar")
    assert list(tmp_path.iterdir()) == [path]
