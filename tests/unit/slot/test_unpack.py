"""Hostile tar streams: nothing is written outside the destination, whatever they say."""

from __future__ import annotations

import ctypes
import io
import os
import resource
import stat
import sys
import tarfile
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from hermes_exec.slot.transfer.pack import pack
from hermes_exec.slot.transfer.unpack import unpack


def member(name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.mtime = kind, link, mode, 1_200_000_000
    return info


def stream(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def pieces(data: bytes, size: int = 700) -> Callable[[], bytes]:
    parts = iter([data[start : start + size] for start in range(0, len(data), size)])
    return lambda: next(parts, b"")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("untouched")
    return victim


@pytest.mark.parametrize(
    "info",
    [
        member("/absolute"),
        member("../victim/new"),
        member("a/../../victim/new"),
        member("link", tarfile.SYMTYPE, link="/etc"),
        member("link", tarfile.SYMTYPE, link="../victim"),
        member("a/link", tarfile.SYMTYPE, link="../../victim"),
        member("link", tarfile.SYMTYPE, link="a/../../victim"),
        member("hard", tarfile.LNKTYPE, link="../victim/file"),
        member("hard", tarfile.LNKTYPE, link="/etc/hostname"),
        member("pipe", tarfile.FIFOTYPE),
        member("device", tarfile.CHRTYPE),
    ],
)
def test_what_leads_outside_is_refused_and_the_rest_arrives(
    info: tarfile.TarInfo, tmp_path: Path, outside: Path
) -> None:
    result = unpack(str(tmp_path / "to"), pieces(stream((info, b""), (member("fine"), b"x"))))
    assert len(result.refused) == 1
    assert (tmp_path / "to" / "fine").read_text() == "x"
    assert not list((tmp_path / "to").rglob("link"))
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"file": "untouched"}


def test_a_link_that_is_there_is_never_written_through(tmp_path: Path, outside: Path) -> None:
    to = tmp_path / "to"
    to.mkdir()
    (to / "sub").symlink_to(outside)
    (to / "file").symlink_to(outside / "file")
    result = unpack(str(to), pieces(stream((member("sub/new"), b"x"), (member("file"), b"replaced"))))
    assert len(result.refused) == 1
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "untouched"
    assert not (to / "file").is_symlink()


def test_a_chain_of_links_stays_inside(tmp_path: Path, outside: Path) -> None:
    chain = stream(
        (member("d", tarfile.DIRTYPE), b""),
        (member("d/up", tarfile.SYMTYPE, link=".."), b""),
        (member("out", tarfile.SYMTYPE, link="d/up/.."), b""),
        (member("out/victim/new"), b"x"),
    )
    unpack(str(tmp_path / "to"), pieces(chain))
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert not (tmp_path / "to" / "out").is_symlink()


def test_modes_and_times_are_kept_and_setuid_is_not(tmp_path: Path) -> None:
    data = stream((member("locked", tarfile.DIRTYPE, mode=0o500), b""), (member("locked/su", mode=0o6755), b"x"))
    unpack(str(tmp_path / "to"), pieces(data))
    assert stat.S_IMODE((tmp_path / "to" / "locked").stat().st_mode) == 0o500
    assert stat.S_IMODE((tmp_path / "to" / "locked" / "su").stat().st_mode) == 0o755
    assert int((tmp_path / "to" / "locked").stat().st_mtime) == 1_200_000_000


def test_a_stream_that_ends_early_is_an_error_and_leaves_no_half_file(tmp_path: Path) -> None:
    data = stream((member("large"), bytes(100_000)))
    with pytest.raises(tarfile.ReadError):
        unpack(str(tmp_path / "to"), pieces(data[:50_000]))
    assert list((tmp_path / "to").iterdir()) == []


def test_a_header_without_end_is_not_held_in_memory(tmp_path: Path) -> None:
    header = member("x", tarfile.XHDTYPE)
    header.size = 1 << 40
    with pytest.raises(tarfile.ReadError, match="header"):
        unpack(str(tmp_path / "to"), pieces(header.tobuf(tarfile.GNU_FORMAT) + bytes(10_000)))


def extended(records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    header = member("x", kind)
    header.size = len(records)
    return header.tobuf(tarfile.GNU_FORMAT) + records + bytes(-len(records) % tarfile.BLOCKSIZE)


def test_an_extended_header_is_read_in_time_that_its_size_gives(tmp_path: Path) -> None:
    with pytest.raises(tarfile.ReadError):
        unpack(str(tmp_path / "to"), pieces(extended(b"1" * (1 << 20))))


def test_headers_about_headers_without_end_are_refused(tmp_path: Path) -> None:
    with pytest.raises(tarfile.ReadError, match="headers"):
        unpack(str(tmp_path / "to"), pieces(extended(b"name", tarfile.GNUTYPE_LONGNAME) * 1000))


def test_a_sparse_map_without_end_is_not_held_in_memory(tmp_path: Path) -> None:
    sparse = bytearray(member("x", tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
    sparse[482], sparse[148:156] = 1, b" " * 8  # there is more to come
    sparse[148:156] = b"%06o\0 " % sum(sparse)
    block = bytearray(b"%011o\0%011o\0" % (1, 1) * 21 + bytes(8))
    block[504] = 1
    received = 0

    def receive() -> bytes:
        nonlocal received
        received += 1
        assert received < 1000
        return bytes(sparse) if received == 1 else bytes(block) * 100

    with pytest.raises(tarfile.ReadError, match="sparse"):
        unpack(str(tmp_path / "to"), receive)


def test_what_is_said_of_all_entries_is_not_held_in_memory(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    value = b"x" * (1 << 19)
    size = len(value) + len("524304 00000000=\n")

    numbers = count()

    def receive() -> bytes:
        if (at := next(numbers)) < 200:
            return extended(b"%d %08d=%s\n" % (size, at, value), tarfile.XGLTYPE)
        return stream((member("fine"), b"x")) if at == 200 else b""

    with suppress(tarfile.ReadError):
        assert unpack(str(tmp_path / "to"), receive).files == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10


def test_what_is_told_of_refused_entries_is_bounded(tmp_path: Path) -> None:
    names = stream(*[(member("../" + "n" * 500_000), b"")] * 3)
    assert sum(map(len, unpack(str(tmp_path / "to"), pieces(names)).refused)) < 50_000


def test_pack_and_unpack_agree(tmp_path: Path) -> None:
    top = tmp_path / "from"
    (top / "a" / "empty").mkdir(parents=True)
    (top / "a" / os.fsdecode(b"\xff\n")).write_bytes(b"raw")
    (top / ("n" * 200)).write_bytes(bytes(300_000))
    (top / "a" / "link").symlink_to("../" + "n" * 200)
    sent: list[bytes] = []
    packed = pack(str(top), sent.append)
    unpacked = unpack(str(tmp_path / "to"), pieces(b"".join(sent)))
    assert (packed.files, packed.bytes) == (unpacked.files, unpacked.bytes) == (3, 300_003)
    assert sorted(p.relative_to(top) for p in top.rglob("*")) == sorted(
        p.relative_to(tmp_path / "to") for p in (tmp_path / "to").rglob("*")
    )


def as_ordinary_user(work: Callable[[], object]) -> None:
    """In a thread that may do with files what one user may, where this one is root."""
    libc = ctypes.CDLL(None)

    def ordinary() -> None:
        if os.geteuid() == 0:
            libc.setfsuid(65534)
        work()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(ordinary).result()


@pytest.mark.skipif(sys.platform != "linux", reason="each thread has file system rights of its own on Linux")
def test_read_only_directories_that_are_there_are_written_to() -> None:
    with tempfile.TemporaryDirectory() as made:  # pytest's own are closed for others
        to = Path(made)
        if os.geteuid() == 0:
            os.chown(to, 65534, -1)
        write_twice(to)


def write_twice(to: Path) -> None:
    entries = [
        (member("d", tarfile.DIRTYPE, mode=0o555), b""),
        (member("d/e", tarfile.DIRTYPE, mode=0o500), b""),
        (member("d/e/file"), b"x" * 5000),
    ]
    as_ordinary_user(lambda: unpack(str(to), pieces(stream(*entries))))
    entries[-1] = (member("d/e/file"), b"y" * 5000)
    whole = stream(*entries)
    with pytest.raises(tarfile.ReadError):
        as_ordinary_user(lambda: unpack(str(to), pieces(whole[:3000])))
    assert [stat.S_IMODE((to / name).stat().st_mode) for name in ("d", "d/e")] == [0o555, 0o500]
    assert (to / "d/e/file").read_bytes() == b"x" * 5000
    as_ordinary_user(lambda: unpack(str(to), pieces(whole)))
    assert [stat.S_IMODE((to / name).stat().st_mode) for name in ("d", "d/e")] == [0o555, 0o500]
    assert (to / "d/e/file").read_bytes() == b"y" * 5000
    assert [path.name for path in (to / "d/e").iterdir()] == ["file"]


def test_entries_may_come_in_any_order_of_directories(tmp_path: Path) -> None:
    names = ["a/1", "b/1", "a/2", "3", "a/b/c/1", "b/2", "a/b/1"]
    before = len(os.listdir("/dev/fd"))
    unpacked = unpack(str(tmp_path / "to"), pieces(stream(*[(member(name), name.encode()) for name in names])))
    assert unpacked.files == len(names)
    assert all((tmp_path / "to" / name).read_text() == name for name in names)
    assert len(os.listdir("/dev/fd")) == before


def test_a_link_that_comes_again_leaves_nothing_else(tmp_path: Path) -> None:
    link = (member("b", tarfile.LNKTYPE, link="a"), b"")
    unpack(str(tmp_path / "to"), pieces(stream((member("a"), b"text"), link, link)))
    assert sorted(p.name for p in (tmp_path / "to").iterdir()) == ["a", "b"]
