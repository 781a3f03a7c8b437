"""Images of checkpoints: layers arrive in the tar of an image, and archives that no slot can make are refused."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from hermes_exec import ConfigError
from hermes_exec.archives.checkpoint_file import CheckpointWriter
from hermes_exec.archives.oci import export_image
from tests.unit.archives.test_checkpoint_file import FACTS

Entry = tuple[str, bytes, dict[str, str], bytes]
Entries = list[Entry]


def pack(entries: Entries, *, trailing: bytes = b"") -> bytes:
    """Return an archive as the runner packs it: each entry has extended records."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, records, data in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.size, entry.uid = kind, 0o4755, len(data), 7
            entry.linkname = records.pop("linkname", "")
            entry.pax_headers = {"mtime": "12.345678901", **records}
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue() + trailing


def xattr(name: str, value: bytes) -> dict[str, str]:
    return {f"LIBARCHIVE.xattr.{name}": base64.b64encode(value).decode()}


def save(path: Path, *archives: bytes) -> Path:
    from dataclasses import replace

    with CheckpointWriter(path) as writer:
        facts = replace(FACTS, layers=(("/", "/usr/lib")[: len(archives)],))
        writer.write_facts(facts)
        for (_, _, name), data in zip(facts.part_names(), archives, strict=True):
            writer.begin(name)
            writer.write(data)
            writer.end(name)
        writer.commit()
    return path


def make_base(path: Path) -> Path:
    """Make an OCI layout with one empty layer."""
    blobs = path / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return f"sha256:{digest}"

    layer = put(b"\0" * 1024)
    config = put(json.dumps({"rootfs": {"type": "layers", "diff_ids": [layer]}, "config": {"Env": ["A=1"]}}).encode())
    manifest = put(json.dumps({"config": {"digest": config}, "layers": [{"digest": layer}]}).encode())
    (path / "index.json").write_text(json.dumps({"manifests": [{"digest": manifest}]}))
    return path


TOP: Entry = ("./", tarfile.DIRTYPE, {}, b"")
HOLES = (3).to_bytes(8, "big") + (4).to_bytes(8, "big") + b"data"


def test_layer_has_what_the_slot_has(tmp_path: Path) -> None:
    root: Entries = [
        TOP,
        ("note", tarfile.REGTYPE, {"HERMES.link": "0"} | xattr("user.overlay.overlay.x", b"\xff\0v"), b"one"),
        ("gone", tarfile.CHRTYPE, {}, b""),
        ("new/", tarfile.DIRTYPE, xattr("user.overlay.opaque", b"y"), b""),
        ("new/same", tarfile.LNKTYPE, {"linkname": "0"}, b""),
        ("new/.wh.note", tarfile.REGTYPE, {}, b"x"),
        ("new/hole", tarfile.REGTYPE, {"HERMES.size": "10", "HERMES.parts": "1"}, HOLES),
        ("new/huge", tarfile.REGTYPE, {"HERMES.size": str(1 << 40), "HERMES.parts": "0"}, b""),
        ("new/old", tarfile.REGTYPE, {"mtime": "-5.5"}, b""),
        ("new/pipe", tarfile.FIFOTYPE, {}, b""),
        ("new/socket", tarfile.FIFOTYPE, {"HERMES.type": "socket"}, b""),
        ("new/ü", tarfile.SYMTYPE, {"linkname": "/nowhere"}, b""),
    ]
    below: Entries = [TOP, ("x", tarfile.REGTYPE, {}, b"below")]
    file, base = save(tmp_path / "x.hxcp", pack(root), pack(below)), make_base(tmp_path / "base")
    left_out = export_image(file, tmp_path / "image", base)
    assert [line.split(":")[0] for line in left_out] == [
        "/new/.wh.note",
        "/new/hole",
        "/new/huge",
        "/new/old",
        "/new/socket",
    ]
    layout = tmp_path / "image"
    index = json.loads((layout / "index.json").read_text())
    blobs = layout / "blobs" / "sha256"
    for blob in blobs.iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    manifest = json.loads((blobs / index["manifests"][0]["digest"].removeprefix("sha256:")).read_text())
    config = json.loads((blobs / manifest["config"]["digest"].removeprefix("sha256:")).read_text())
    assert config["config"] == {"Env": ["A=1"], "WorkingDir": "/workspace"}
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
    with tarfile.open(blobs / manifest["layers"][1]["digest"].removeprefix("sha256:")) as layer:
        entries = {entry.name: entry for entry in layer}
        assert list(entries) == [
            ".",
            *("note", ".wh.gone", "new", "new/.wh..wh..opq", "new/same", "new/hole", "new/old", "new/pipe", "new/ü"),
            *("usr/lib", "usr/lib/x"),
        ]
        note, hole, same = entries["note"], entries["new/hole"], entries["new/same"]
        assert (note.mode, note.uid, note.pax_headers["mtime"]) == (0o4755, 7, "12.345678901")
        value = note.pax_headers["SCHILY.xattr.user.overlay.x"].encode("utf-8", "surrogateescape")
        assert value == b"\xff\0v"
        assert (same.islnk(), same.linkname) == (True, "note")
        assert (contents := layer.extractfile(hole)) is not None
        assert contents.read() == b"\0\0\0data\0\0\0"
        assert (entries["new/ü"].linkname, entries["new/old"].mtime) == ("/nowhere", 0)
    export_image(file, tmp_path / "again.tar", layout)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["again.tar", "base", "image", "x.hxcp"]


HOSTILE: dict[str, bytes] = {
    "no tar": b"x" * 2048,
    "incomplete": pack([TOP])[:512],
    "parent": pack([TOP, ("../note", tarfile.REGTYPE, {}, b"")]),
    "parent in the middle": pack([TOP, ("a/../../note", tarfile.REGTYPE, {}, b"")]),
    "absolute": pack([TOP, ("/note", tarfile.REGTYPE, {}, b"")]),
    "device": pack([TOP, ("note", tarfile.BLKTYPE, {}, b"")]),
    "link to nothing": pack([TOP, ("note", tarfile.LNKTYPE, {"linkname": "0"}, b"")]),
    "link to a path": pack([TOP, ("note", tarfile.LNKTYPE, {"linkname": "/etc/passwd"}, b"")]),
    "time": pack([TOP, ("note", tarfile.REGTYPE, {"mtime": "inf"}, b"")]),
    "attribute": pack([TOP, ("note", tarfile.REGTYPE, {"LIBARCHIVE.xattr.user.a": "?"}, b"")]),
    "holes": pack([TOP, ("note", tarfile.REGTYPE, {"HERMES.size": "5", "HERMES.parts": "1"}, HOLES)]),
    "many holes": pack([TOP, ("note", tarfile.REGTYPE, {"HERMES.size": "5", "HERMES.parts": "9" * 9}, HOLES)]),
    "large header": pack([TOP, ("note", tarfile.REGTYPE, {"x": "y" * (1 << 20)}, b"")]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_layer_is_refused_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    file, base = save(tmp_path / "x.hxcp", HOSTILE[name]), make_base(tmp_path / "base")
    with pytest.raises(ConfigError, match=r"layers/0/0\.tar"):
        export_image(file, tmp_path / "image.tar", base)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["base", "x.hxcp"]


def test_base_that_is_no_image_is_refused(tmp_path: Path) -> None:
    file = save(tmp_path / "x.hxcp", pack([TOP]))
    other = tmp_path / "other"
    other.mkdir()
    text = tmp_path / "text"
    text.write_text("x")
    several = make_base(tmp_path / "several")
    (several / "index.json").write_text('{"manifests": [{}, {}]}')
    leaving = make_base(tmp_path / "leaving")
    (leaving / "index.json").write_text('{"manifests": [{"digest": "sha256:../../x"}]}')
    for base, problem in ((other, "neither"), (text, "no tar"), (several, "exactly one"), (leaving, "no digest")):
        with pytest.raises(ConfigError, match=problem) as refused:
            export_image(file, tmp_path / "image.tar", base)
        assert "\n" not in str(refused.value)
        assert not (tmp_path / "image.tar").exists()
    with pytest.raises(FileExistsError):
        export_image(file, other, other)
