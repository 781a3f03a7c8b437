"""Uploading and downloading trees, searching."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from string import ascii_uppercase

import anyio

from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.expect import equal, raises, that
from hermes_exec.testing.conformance.registry import check

WHEN = 1_200_000_000


def _make_tree(top: Path) -> None:
    (top / "sub" / "empty").mkdir(parents=True)
    for name, text, mode in (
        ("plain", "plain", 0o640),
        ("sub/run", "#!", 0o755),
        ("new\nline", "x", 0o600),
        ("ünï ☃", "y", 0o644),
    ):
        (top / name).write_text(text)
        (top / name).chmod(mode)
        os.utime(top / name, (WHEN, WHEN))
    (top / os.fsdecode(b"raw\xff")).write_bytes(bytes(range(256)))
    (top / "sub" / "link").symlink_to("../plain")


def _picture(top: Path) -> dict[str, object]:
    picture: dict[str, object] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            picture[name] = os.readlink(path)
        elif path.is_dir():
            picture[name] = "dir"
        else:
            picture[name] = (path.read_bytes(), oct(path.stat().st_mode & 0o7777))
    return picture


@check("trees")
async def check_tree_there_and_back(ctx: Context) -> None:
    """A directory with modes, times, links, empty directories and odd names comes back from a slot as it went in."""
    _make_tree(ctx.directory / "out")
    await ctx.slot.files.upload(ctx.directory / "out", "up/tree")
    await ctx.slot.files.download("up/tree", ctx.directory / "back")
    equal(_picture(ctx.directory / "back"), _picture(ctx.directory / "out"), "the tree")
    equal(int((ctx.directory / "back" / "plain").stat().st_mtime), WHEN, "the time")


@check("trees")
async def check_saved_tree_is_restored(ctx: Context) -> None:
    """An archive of a directory brings it back after a reset as it was."""
    _make_tree(ctx.directory / "out")
    await ctx.slot.files.upload(ctx.directory / "out", "up")
    with tempfile.TemporaryFile() as archive:
        equal((await ctx.slot.files.save("up", archive)).refused, (), "entries left out")
        await ctx.slot.reset()
        archive.seek(0)
        await ctx.slot.files.restore(archive, "again")
    await ctx.slot.files.download("again", ctx.directory / "back")
    equal(_picture(ctx.directory / "back"), _picture(ctx.directory / "out"), "the tree")


@check("trees")
async def check_single_files_there_and_back(ctx: Context) -> None:
    """One file is uploaded and downloaded under the names that were given."""
    source = ctx.directory / "one.bin"
    source.write_bytes(bytes(range(256)) * 5000)
    source.chmod(0o751)
    await ctx.slot.files.upload(source, "deep/er/two.bin")
    equal(oct((await ctx.slot.files.stat("deep/er/two.bin")).mode), "0o751", "mode")
    await ctx.slot.files.download("deep/er/two.bin", ctx.directory / "three.bin")
    equal((ctx.directory / "three.bin").read_bytes(), source.read_bytes(), "contents")


@check("trees")
async def check_missing_tree_is_told(ctx: Context) -> None:
    """Uploading or downloading a missing path is FileNotFoundError."""
    with raises(FileNotFoundError, about="absent"):
        await ctx.slot.files.upload(ctx.directory / "absent", "x")
    with raises(FileNotFoundError, about="absent"):
        await ctx.slot.files.download("absent", ctx.directory / "x")


@check("trees")
async def check_upload_drops_setuid(ctx: Context) -> None:
    """Setuid and setgid bits never travel."""
    (ctx.directory / "t").mkdir()
    (ctx.directory / "t" / "su").write_text("x")
    (ctx.directory / "t" / "su").chmod(0o6755)
    await ctx.slot.files.upload(ctx.directory / "t", "t")
    equal(oct((await ctx.slot.files.stat("t/su")).mode), "0o755", "mode in the slot")


@check("trees")
async def check_download_drops_setuid(ctx: Context) -> None:
    """A setuid program of the slot is an ordinary file on the driver's side."""
    await ctx.slot.files.write_bytes("t/su", b"x")
    await ctx.slot.files.chmod("t/su", 0o6755)
    await ctx.slot.files.download("t", ctx.directory / "t")
    equal(oct((ctx.directory / "t" / "su").stat().st_mode & 0o7777), "0o755", "mode at the driver")


@check("trees", "helper")
async def check_download_never_leaves_its_directory(ctx: Context) -> None:
    """Absolute and escaping links of a hostile tree are left out and reported; nothing is written beside the
    destination.
    """
    (ctx.directory / "victim").mkdir()
    await ctx.slot.files.write_text("t/fine", "x")
    for name, target in (("root", "/"), ("up", "../../victim"), ("abs", ctx.directory / "victim")):
        await ctx.applet("symlink", target, f"t/{name}", check=True)
    moved = await ctx.slot.files.download("t", ctx.directory / "inner" / "back")
    equal(sorted(path.name for path in (ctx.directory / "inner" / "back").iterdir()), ["fine"], "what arrived")
    equal(list((ctx.directory / "victim").iterdir()), [], "files written outside")
    equal(len(moved.refused), 3, "refused entries")


@check("trees", "helper")
async def check_download_never_follows_old_links(ctx: Context) -> None:
    """A link that is already in the destination is not written through."""
    (ctx.directory / "victim").mkdir()
    (ctx.directory / "back").mkdir()
    (ctx.directory / "back" / "sub").symlink_to(ctx.directory / "victim")
    await ctx.slot.files.write_text("t/sub/f", "x")
    with contextlib.suppress(OSError):
        await ctx.slot.files.download("t", ctx.directory / "back")
    equal(list((ctx.directory / "victim").iterdir()), [], "files written through the link")


@check("trees", "helper")
async def check_upload_never_leaves_its_directory(ctx: Context) -> None:
    """Absolute and escaping links are refused and reported; a link of the tenant is not written through."""
    (ctx.directory / "t" / "sub").mkdir(parents=True)
    (ctx.directory / "t" / "sub" / "f").write_text("x")
    (ctx.directory / "t" / "abs").symlink_to("/etc/passwd")
    (ctx.directory / "t" / "up").symlink_to("../../../x")
    await ctx.slot.files.mkdir("dest")
    await ctx.slot.files.mkdir("victim")
    await ctx.applet("symlink", f"{ctx.slot.workspace}/victim", "dest/sub", check=True)
    moved = await ctx.slot.files.upload(ctx.directory / "t", "dest")
    that(len(moved.refused) >= 3, f"refused: {moved.refused}")
    equal(await ctx.slot.files.list("victim"), [], "files written through the link")
    equal([e.name for e in await ctx.slot.files.list("dest")], ["sub"], "names in the destination")


@check("trees", "helper")
async def check_special_files_do_not_stop_a_download(ctx: Context) -> None:
    """A FIFO in the tree is left out, the rest arrives."""
    await ctx.slot.files.write_text("t/f", "x")
    await ctx.applet("fifo", "t/pipe", check=True)
    await ctx.slot.files.download("t", ctx.directory / "t")
    equal([path.name for path in (ctx.directory / "t").iterdir()], ["f"], "what arrived")


async def _source_tree(ctx: Context) -> None:
    for name, text in {
        "src/a.py": "def needle():\n    pass\n",
        "src/lib/b.ts": "x\nneedle = 1\n",
        "c.txt": "-f needle\n",
        "bin": "needle\0",
        "node/skip.py": "needle\n",
        ".gitignore": "node/\n",
    }.items():
        await ctx.slot.files.write_text(f"tree/{name}", text)


@check("search")
async def check_search_content(ctx: Context) -> None:
    """A search finds lines by regular expression, in the order of paths, passes over ignored and binary files and
    counts all.
    """
    await _source_tree(ctx)
    result = await ctx.slot.files.search(r"need\w+", path="tree")
    equal(
        [(m.path.rpartition("tree/")[2], m.line) for m in result.matches],
        [("c.txt", 1), ("src/a.py", 1), ("src/lib/b.ts", 2)],
        "matches",
    )
    equal((result.total, result.total_files, result.binary_skipped, result.truncated), (3, 3, 1, False), "totals")


@check("search")
async def check_search_totals_are_true(ctx: Context) -> None:
    """With a limit the totals still count everything, and truncated is set."""
    await ctx.slot.files.write_text("tree/f", "hit\n" * 1000)
    result = await ctx.slot.files.search("hit", path="tree", limit=10)
    equal((len(result.matches), result.total, result.truncated), (10, 1000, True), "kept, total, truncated")


@check("search")
async def check_search_pattern_is_no_option(ctx: Context) -> None:
    """A pattern with a leading dash is only a pattern; an invalid one is refused with the reason."""
    await _source_tree(ctx)
    equal((await ctx.slot.files.search("-f", path="tree")).total, 1, "lines")
    with raises(ValueError):
        await ctx.slot.files.search("a(", path="tree")


@check("search")
async def check_cancelled_search_ends_its_work(ctx: Context) -> None:
    """Searches that are cancelled take no more time from the slot, though they would have gone on for minutes."""
    await ctx.slot.files.write_text("tree/f", ("word " * 15 + "\n") * 60_000)
    for_minutes = "|".join("(?:[a-z]{1,50} ?){15}" + letter for letter in ascii_uppercase)
    with anyio.move_on_after(0.3):
        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(ctx.slot.files.search, for_minutes, "tree")
    started = time.monotonic()
    equal((await ctx.slot.files.stat("tree/f")).size, 4_560_000, "size")
    equal(len(await ctx.slot.files.glob("tree/*")), 1, "files")  # waits behind searches, as a stat does not
    took_s = time.monotonic() - started
    that(took_s < 30, f"a look at one file took {took_s:.1f} s after the searches were cancelled")


@check("search")
async def check_search_by_glob(ctx: Context) -> None:
    """A glob filter with directories is kept whole."""
    await _source_tree(ctx)
    result = await ctx.slot.files.search("needle", path="tree", glob="src/**/*.ts")
    equal([m.path.rpartition("/")[2] for m in result.matches], ["b.ts"], "files")


@check("search")
async def check_glob(ctx: Context) -> None:
    """Glob gives the paths that match, `**` through directories."""
    await _source_tree(ctx)
    paths = await ctx.slot.files.glob("tree/**/*.py")
    equal(sorted(str(path).rpartition("tree/")[2] for path in paths), ["node/skip.py", "src/a.py"], "paths")
