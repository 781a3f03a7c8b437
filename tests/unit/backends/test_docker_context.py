"""What a build is given of a directory, and what its image is known by."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import pytest

from hermes_exec import ConfigError
from hermes_exec.backends.docker.build import tag_of
from hermes_exec.backends.dockerfile import directory_of

pytest.importorskip("docker")


def fill(directory: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


FILES = {"Dockerfile": "FROM x\n", "a.txt": "a", "A.TXT": "A", "sub/b.txt": "b", "sub/c.md": "c", "out/x": "x"}


def packed(directory: Path) -> dict[str, tarfile.TarInfo]:
    from hermes_exec.backends.docker.context import pack_context

    archive = BytesIO()
    pack_context(directory, archive)
    archive.seek(0)
    with tarfile.open(fileobj=archive) as found:
        return {entry.name: entry for entry in found}


@pytest.mark.parametrize(
    ("ignore", "left_out"),
    [
        ("", set()),
        ("# a comment\n\n  a.txt  \n", {"a.txt"}),
        ("*.txt\n", {"a.txt"}),
        ("**/*.txt\n!sub/b.txt\n", {"a.txt"}),
        ("/sub\nout/\n", {"sub", "sub/b.txt", "sub/c.md", "out", "out/x"}),
        ("*\n!out\n", {"a.txt", "A.TXT", "sub", "sub/b.txt", "sub/c.md"}),
        ("Dockerfile\n.dockerignore\n", set()),
    ],
)
def test_what_dockerignore_leaves_out(ignore: str, left_out: set[str], tmp_path: Path) -> None:
    fill(tmp_path, {**FILES, ".dockerignore": ignore})
    assert {*FILES, ".dockerignore", "sub", "out"} - packed(tmp_path).keys() == left_out


def test_an_archive_is_owned_by_root_and_keeps_times_and_links(tmp_path: Path) -> None:
    fill(tmp_path, FILES)
    os.utime(tmp_path / "a.txt", (1_600_000_000, 1_600_000_000))
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    entries = packed(tmp_path)
    assert {(entry.uid, entry.gid, entry.uname) for entry in entries.values()} == {(0, 0, "")}
    assert entries["a.txt"].mtime == 1_600_000_000
    assert (entries["link"].issym(), entries["link"].linkname) == (True, "/etc/passwd")
    assert "pipe" not in entries


def test_an_image_is_known_by_content(tmp_path: Path) -> None:
    one = fill(tmp_path / "one", {**FILES, ".dockerignore": "out\n"})
    other = fill(tmp_path / "other", {**FILES, ".dockerignore": "out\n"})
    first = tag_of(one, None)
    assert first == tag_of(other, None), "whatever the directory is called and whenever it was written"
    fill(other, {"out/x": "changed"})
    assert tag_of(other, None) == first, "what is ignored does not count"
    assert tag_of(other, "linux/arm64") != first
    for name in ("Dockerfile", "sub/b.txt"):
        fill(other, {name: "changed"})
        assert tag_of(other, None) != first
        fill(other, {name: FILES[name]})
    (other / "a.txt").chmod(0o755)
    assert tag_of(other, None) != first


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("", "there is no directory"),
        ("nowhere", "there is no directory"),
        ("a.txt", "there is no directory"),
        ("sub", "no Docker"),
    ],
)
def test_a_directory_that_nothing_can_be_built_of(
    named: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fill(tmp_path, FILES))
    with pytest.raises(ConfigError, match=why):
        directory_of(f"dockerfile:{named}")
    assert directory_of("dockerfile:.") == tmp_path
    assert directory_of("debian:12") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (fill(tmp_path, FILES) / "a.txt").chmod(0)
    with pytest.raises(ConfigError, match=r"cannot be packed.*a\.txt"):
        tag_of(tmp_path, None)
