"""`slot.files` and the transfer of trees, on a real sandbox."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import anyio
import pytest

from hermes_exec import ConfigError, OutputLimitExceeded, Slot

pytestmark = [pytest.mark.anyio, pytest.mark.loops]
RAW_NAME = b"raw\xff\nname"


async def test_bytes_there_and_back(slot: Slot) -> None:
    for data in (b"", bytes(range(256)), os.urandom(3_000_000)):
        written = await slot.files.write_bytes("deep/er/file", data, mode=0o640)
        assert written.written == len(data)
        assert await slot.files.read_bytes("deep/er/file") == data
    facts = await slot.files.stat("deep/er/file")
    assert (facts.mode, facts.size, facts.type) == (0o640, 3_000_000, "file")
    assert await slot.files.read_bytes("deep/er/file", offset=10, length=5) == data[10:15]
    with pytest.raises(OutputLimitExceeded):
        await slot.files.read_bytes("deep/er/file", limit_bytes=1000)


async def test_names_that_are_not_text(slot: Slot) -> None:
    await slot.files.write_bytes(RAW_NAME, b"x")
    (entry,) = await slot.files.list()
    assert os.fsencode(entry.name) == RAW_NAME
    assert await slot.files.read_bytes(entry.name) == b"x"
    await slot.files.move(entry.name, "plain")
    assert [entry.name for entry in await slot.files.list()] == ["plain"]


async def test_errors_are_those_of_the_standard_library_with_the_path(slot: Slot) -> None:
    files = slot.files
    await files.write_text("file", "x")
    await files.mkdir("directory")
    cases = [
        (files.read_bytes("absent"), FileNotFoundError, "absent"),
        (files.read_bytes("directory"), IsADirectoryError, "directory"),
        (files.read_bytes("file/below"), NotADirectoryError, "file/below"),
        (files.mkdir("directory"), FileExistsError, "directory"),
        (files.write_bytes("/usr/x", b""), OSError, "/usr/x"),
        (files.read_bytes("/etc/shadow"), OSError, "/etc/shadow"),
        (files.list("absent"), FileNotFoundError, "absent"),
        (files.move("absent", "x"), FileNotFoundError, "absent"),
        (files.write_text("a/b", "x", parents=False), FileNotFoundError, "a/b"),
    ]
    for call, kind, path in cases:
        with pytest.raises(kind) as caught:
            await call
        assert isinstance(caught.value, OSError)
        assert caught.value.filename is not None
        assert caught.value.filename.endswith(path)
    for bad in ("", "a\0b", "\ud800"):
        with pytest.raises(ConfigError):
            await files.read_bytes(bad)
    with pytest.raises(ConfigError):
        await files.write_bytes("x", "text")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        await files.chmod("file", 0o10000)


async def test_a_cancelled_write_keeps_the_old_file(slot: Slot) -> None:
    await slot.files.write_text("kept", "old")
    for delay in (0.0, 0.001, 0.005, 0.02):
        with anyio.move_on_after(delay) as scope:
            await slot.files.write_bytes("kept", b"n" * 30_000_000)
        if scope.cancelled_caught:
            assert await slot.files.read_text("kept") == "old"
        await slot.files.write_text("kept", "old")
    assert [entry.name for entry in await slot.files.list()] == ["kept"]


def make_tree(top: Path) -> None:
    (top / "sub" / "empty").mkdir(parents=True)
    (top / "plain").write_bytes(os.urandom(700_000))
    (top / "plain").chmod(0o664)
    (top / "sub" / "run").write_text("#!")
    (top / "sub" / "run").chmod(0o755)
    (top / "sub" / "link").symlink_to("../plain")
    (top / "twin").hardlink_to(top / "plain")
    (top / os.fsdecode(RAW_NAME)).write_text("raw")
    (top / ("long" * 40)).write_text("long")
    (top / "sub").chmod(0o750)


def picture(top: Path) -> dict[str, object]:
    seen: dict[str, object] = {}
    for path in sorted(top.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        content = os.readlink(path) if path.is_symlink() else mode if path.is_dir() else (mode, path.read_bytes())
        seen[str(path.relative_to(top))] = content
    return seen


async def test_a_tree_there_and_back(slot: Slot, tmp_path: Path) -> None:
    make_tree(tmp_path / "out")
    sent = await slot.files.upload(tmp_path / "out", "tree")
    assert sent.refused == ()
    assert (await slot.run("cat tree/sub/link | wc -c; stat -c %a tree/plain")).stdout == "700000\n664\n"
    got = await slot.files.download("tree", tmp_path / "back")
    assert got.refused == ()
    assert picture(tmp_path / "back") == picture(tmp_path / "out")
    await slot.files.download("tree", tmp_path / "back")
    assert picture(tmp_path / "back") == picture(tmp_path / "out")


async def test_a_file_that_can_only_be_written_in_place_is_whole_or_as_it_was(slot: Slot) -> None:
    await slot.run("mkdir closed; echo old | tee closed/file > two; ln two names; chmod 555 closed", check=True)
    large = os.urandom(3_000_000)
    for path in ("closed/file", "two"):
        with anyio.move_on_after(0.005):
            await slot.files.write_bytes(path, b"n" * 30_000_000)
        assert (await slot.files.stat(path)).size in {4, 30_000_000}
        for content in (large, b"short"):
            await slot.files.write_bytes(path, content)
            assert await slot.files.read_bytes(path) == content
    assert await slot.files.read_bytes("names") == b"short"
    assert (await slot.run('ls -A . closed "$TMPDIR" | grep -c hermes')).stdout == "0\n"


async def test_a_tree_with_read_only_directories_is_uploaded_again(slot: Slot, tmp_path: Path) -> None:
    inner = tmp_path / "tree/closed/inner"
    inner.mkdir(parents=True)
    look = "stat -c '%a %n' closed closed/inner closed/file; cat closed/file closed/inner/file"
    for content in ("one\n", "two\n"):
        for directory in (inner, inner.parent):
            directory.chmod(0o755)
            (directory / "file").write_text(content)
            directory.chmod(0o555)
        assert (await slot.files.upload(tmp_path / "tree", ".")).refused == ()
        seen = (await slot.run(look)).check().stdout
        assert seen == f"555 closed\n555 closed/inner\n644 closed/file\n{content * 2}"
    assert not (await slot.run("touch closed/more")).ok


async def test_an_upload_that_is_refused_ends_early(slot: Slot, tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    for number in range(20):
        (tmp_path / "large" / str(number)).write_bytes(bytes(1_000_000))
    with pytest.raises(OSError, match="usr"):
        await slot.files.upload(tmp_path / "large", "/usr/forbidden")
    assert (await slot.run("echo usable")).ok


async def test_a_cancelled_transfer_ends(slot: Slot, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(40_000_000))
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "large").hardlink_to(tmp_path / "large")
    for delay in (0.0, 0.01, 0.05):
        with anyio.move_on_after(delay):
            await slot.files.upload(tmp_path / "tree", "t")
    await slot.files.upload(tmp_path / "tree", "t")
    for delay in (0.0, 0.01, 0.05):
        with anyio.move_on_after(delay):
            await slot.files.download("t", tmp_path / "back")
        with anyio.move_on_after(delay):
            await slot.files.download("t/large", tmp_path / "single")
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]
    await slot.files.download("t", tmp_path / "back")
    assert (tmp_path / "back" / "large").stat().st_size == 40_000_000


async def test_special_files(slot: Slot, tmp_path: Path) -> None:
    assert (await slot.run("mkdir s; mkfifo s/pipe; echo x > s/file")).ok
    for call in (slot.files.read_bytes("s/pipe"), slot.files.write_bytes("s/pipe", b"x")):
        with anyio.fail_after(30), pytest.raises(OSError, match="pipe"):
            await call
    got = await slot.files.download("s", tmp_path / "s")
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["file"]
    assert len(got.refused) == 1
    os.mkfifo(tmp_path / "s" / "local")
    sent = await slot.files.upload(tmp_path / "s", "again")
    assert len(sent.refused) == 1


async def test_search_and_glob(slot: Slot) -> None:
    await slot.files.write_text("src/a.py", "one\nneedle = 1\nthree\n")
    await slot.files.write_text("src/b.txt", "NEEDLE\n")
    found = await slot.files.search("need.e", context=1)
    assert [(match.path, match.line, match.text, match.before, match.after) for match in found.matches] == [
        (found.matches[0].path, 2, "needle = 1", ("one",), ("three",))
    ]
    assert (await slot.files.search("needle", ignore_case=True)).total == 2
    assert (await slot.files.search("need.e", regex=False)).total == 0
    assert [path.rpartition("/")[2] for path in await slot.files.glob("**/*.py")] == ["a.py"]
    with pytest.raises(ConfigError):
        await slot.files.search("(")


async def test_holes_stay_holes(slot: Slot, tmp_path: Path) -> None:
    await slot.run(
        "mkdir tree; truncate -s 200M tree/sparse; echo end >> tree/sparse; truncate -s 1T empty", check=True
    )
    await slot.files.copy("tree/sparse", "copy")
    await slot.files.copy("empty", "empty2")
    await slot.files.download("tree", tmp_path / "tree")
    await slot.files.download("copy", tmp_path / "copy")
    for made in (tmp_path / "tree" / "sparse", tmp_path / "copy"):
        facts = made.stat()
        assert facts.st_size == (200 << 20) + 4
        assert facts.st_blocks * 512 < 4 << 20
        with made.open("rb") as file:
            file.seek(-8, os.SEEK_END)
            assert file.read() == bytes(4) + b"end\n"
    assert (await slot.run("stat -c '%s %b' empty2")).stdout == f"{1 << 40} 0\n"


async def test_a_download_replaces_no_device_and_no_fifo(slot: Slot, tmp_path: Path) -> None:
    await slot.files.write_text("directory/fifo", "x")
    await slot.files.write_text("directory/file", "x")
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_text("old")
    os.mkfifo(tmp_path / "directory" / "fifo")
    with pytest.raises(FileExistsError, match="device, FIFO or socket"):
        await slot.files.download("directory/fifo", tmp_path / "directory" / "fifo")
    copied = await slot.files.download("directory", tmp_path / "directory")
    assert [(tmp_path / "directory" / name).is_fifo() for name in ("fifo", "file")] == [True, False]
    assert copied.files == 1
    assert "FIFO" in copied.refused[0]
    (tmp_path / "link").symlink_to(tmp_path / "directory" / "fifo")
    await slot.files.download("directory/file", tmp_path / "link")
    assert (tmp_path / "link").read_text() == "x"
    assert (tmp_path / "directory" / "fifo").is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["directory", "file", "link"]


async def test_a_tree_whose_transfer_is_called_off_at_any_moment_ends_then(slot: Slot, tmp_path: Path) -> None:
    """Between two pieces of a tree there is nothing that waits; a cancel then was heard after 75 s without data."""
    assert (await slot.run("for d in $(seq 100); do mkdir -p d/$d; (cd d/$d; seq 200 | xargs touch); done")).ok
    for number in range(10):
        with anyio.fail_after(30), anyio.move_on_after(0.05 * (number + 1)) as called_off:
            await slot.files.download("d", tmp_path / str(number))
        assert called_off.cancelled_caught


async def test_what_is_saved_is_restored_as_it_was(slot: Slot) -> None:
    made = "mkdir -p t/deep && cd t && echo x > deep/f && ln deep/f hard && chmod 640 deep/f"
    odd = "ln -s /etc/passwd out; ln -s ../../.. up; ln -s nowhere dangling; mkfifo pipe; echo y > $'raw\\377'"
    assert (await slot.run(f"{made} && {odd} && touch -d @1000000000 deep/f && chmod 500 deep")).ok
    with tempfile.TemporaryFile() as tree, tempfile.TemporaryFile() as single:
        kept = await slot.files.save("t", tree)
        assert (kept.files, [text.partition(":")[0] for text in kept.refused]) == (6, ["pipe"])
        await slot.files.save("t/deep/f", single)
        await slot.reset()
        for archive, below in ((tree, "back/t"), (single, "single")):
            archive.seek(0)
            assert (await slot.files.restore(archive, below)).refused == ()
    facts = "stat -c '%n %a %Y %h' deep/f; stat -c %a deep; readlink out up dangling"
    told = (await slot.run(f"cd back/t; {facts}; cat $'raw\\377' ../../single/f")).stdout.split()
    assert told == ["deep/f", "640", "1000000000", "2", "500", "/etc/passwd", "../../..", "nowhere", "y", "x"]
    with tempfile.TemporaryFile() as archive:
        with pytest.raises(OutputLimitExceeded):
            await slot.files.save("back", archive, 10)
        with pytest.raises(FileNotFoundError):
            await slot.files.save("absent", archive)


async def test_read_limit_error_names_the_path_once(slot: Slot) -> None:
    await slot.files.write_bytes("small/f", b"x" * 5)
    with pytest.raises(OutputLimitExceeded) as caught:
        await slot.files.read_bytes("small/f", 1, limit_bytes=3)
    assert str(caught.value) == "small/f: 4 bytes from offset 1 are over the limit of 3 bytes"


async def test_a_download_has_a_limit(slot: Slot, tmp_path: Path) -> None:
    assert (await slot.run("mkdir t && truncate -s 3M t/holes && head -c 2M /dev/zero > t/full")).ok
    for number, path in enumerate(("t", "t/full")):
        with pytest.raises(OutputLimitExceeded, match="more than 1048576 bytes"):
            await slot.files.download(path, tmp_path / str(number), 1 << 20)
    assert (await slot.files.download("t/full", tmp_path / "full", 2 << 20)).bytes == 2 << 20
    with pytest.raises(ConfigError, match="limit_bytes"):
        await slot.files.download("t/full", tmp_path / "full", 0)
