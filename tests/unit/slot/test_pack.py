"""A directory that changes while it is packed: nothing waits, nothing is mistaken, what was left out is named."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_exec.results import TreeCopied
from hermes_exec.slot.transfer.pack import NotRegular, open_regular, pack

PIECE = 300_000


def packed(directory: Path, meanwhile: Callable[[], None]) -> tuple[TreeCopied, dict[str, tarfile.TarInfo]]:
    """Pack a directory; `meanwhile` is called once, when its first large file was sent."""
    pieces: list[bytes] = []

    def send(piece: bytes) -> None:
        if not pieces:
            meanwhile()
        pieces.append(piece)

    report = pack(str(directory), send)
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        return report, {member.name: member for member in archive}


def test_a_file_that_got_the_number_of_a_removed_one_is_sent_as_itself(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("first")
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "large").write_bytes(bytes(PIECE))
    names = [f"n{number:03}" for number in range(200)]
    for name in names:
        (tmp_path / name).touch()
    number = (tmp_path / "a").stat().st_ino

    def replace() -> None:
        for name in ("a", "b", *names):
            (tmp_path / name).unlink()
        for name in names[::2]:
            (tmp_path / name).write_text(name)
        for name, link in zip(names[::2], names[1::2], strict=True):
            os.link(tmp_path / name, tmp_path / link)

    _, members = packed(tmp_path, replace)
    if all((tmp_path / name).stat().st_ino != number for name in names):
        pytest.skip("this file system does not use a number again so soon")
    assert members["b"].islnk()
    assert members["b"].linkname == "a"
    for name, link in zip(names[::2], names[1::2], strict=True):
        assert members[name].isreg()
        assert members[link].linkname == name


def test_a_file_that_was_removed_meanwhile_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(PIECE))
    (tmp_path / "b").write_text("b")
    (tmp_path / "c").mkdir()
    (tmp_path / "d").write_text("d")

    def remove() -> None:
        (tmp_path / "b").unlink()
        (tmp_path / "c").rmdir()

    report, members = packed(tmp_path, remove)
    assert report.files == 2
    assert set(members) == {"a", "d"}
    assert [line.partition(":")[0] for line in report.refused] == ["b", "c"]


def test_what_took_a_files_place_is_not_waited_for_and_not_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("file")
    os.symlink("file", tmp_path / "link")
    for name in ("fifo", "link", "."):
        with pytest.raises(NotRegular):
            open_regular(str(tmp_path / name))
    with open_regular(str(tmp_path / "link"), follow=True) as file:
        assert file.read() == b"file"


@pytest.mark.parametrize("what", ["link", "file", "nothing", "inner link"])
def test_a_directory_that_was_replaced_meanwhile_is_named_and_no_link_is_followed(tmp_path: Path, what: str) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    (outside / "inner").mkdir(parents=True)
    (outside / "secret").write_text("secret")
    (outside / "inner" / "secret").write_text("secret")
    (tree / "a" / "inner").mkdir(parents=True)
    (tree / "a" / "own").write_text("own")
    (tree / "large").write_bytes(bytes(PIECE))

    def replace() -> None:
        moved = tree / "a" / "inner" if what == "inner link" else tree / "a"
        moved.rename(tmp_path / "away")
        if "link" in what:
            moved.symlink_to(outside)
        elif what == "file":
            moved.write_text("a file")

    report, members = packed(tree, replace)
    assert not [name for name in members if "secret" in name]
    if what == "inner link":
        assert members["a/inner"].issym()
    else:
        assert report.refused == ("a: was removed or replaced meanwhile",)
