"""File names, kinds, modes and links; what commands and file calls see of each other."""

from __future__ import annotations

import os
import time

from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.expect import equal, raises, that
from hermes_exec.testing.conformance.registry import check

NAMES = [
    "new\nline",
    "-rf",
    "quote'\"`$(id)",
    "tab\tand \\",
    "ünïcode ☃",
    os.fsdecode(b"raw \xff\xfe"),
    "*?[a]",
    "n" * 255,
]


@check("files")
async def check_any_name_is_a_name(ctx: Context) -> None:
    """Names with line ends, quotes, leading dashes and bytes that are no UTF-8 are written, listed and read."""
    for i, name in enumerate(NAMES):
        await ctx.slot.files.write_text(f"names/{name}", str(i))
    listed = {entry.name for entry in await ctx.slot.files.list("names")}
    equal(sorted(listed), sorted(NAMES), "the list")
    for i, name in enumerate(NAMES):
        equal(await ctx.slot.files.read_text(f"names/{name}"), str(i), name)


@check("files", "helper")
async def check_commands_and_file_calls_share_files(ctx: Context) -> None:
    """Commands and file calls see each other's files at once, with the same owner."""
    await ctx.slot.files.write_text("from-outside", "one")
    equal((await ctx.applet("cat", "from-outside")).stdout, "one", "read by a command")
    await ctx.applet("write", "from-inside", stdin="two")
    equal(await ctx.slot.files.read_text("from-inside"), "two", "read by a file call")
    uid = int((await ctx.applet("id")).stdout.split()[0])
    equal({(await ctx.slot.files.stat(name)).uid for name in ("from-outside", "from-inside")}, {uid}, "owners")


@check("files")
async def check_mode_of_new_files(ctx: Context) -> None:
    """A new file has mode 0644, or exactly the mode of the call."""
    await ctx.slot.files.write_bytes("a", b"")
    await ctx.slot.files.write_bytes("b", b"", mode=0o751)
    equal([oct((await ctx.slot.files.stat(name)).mode) for name in "ab"], ["0o644", "0o751"], "modes")


@check("files")
async def check_overwriting_keeps_the_mode(ctx: Context) -> None:
    """A file that is replaced keeps its mode."""
    await ctx.slot.files.write_bytes("script", b"old", mode=0o755)
    await ctx.slot.files.write_bytes("script", b"new")
    equal(oct((await ctx.slot.files.stat("script")).mode), "0o755", "mode")


@check("files", "helper")
async def check_writing_through_a_symbolic_link(ctx: Context) -> None:
    """Writing to a link changes its target, creates a missing target, and keeps the link."""
    await ctx.slot.files.write_text("real", "old")
    await ctx.applet("symlink", "real", "link", check=True)
    await ctx.applet("symlink", "new", "dangling", check=True)
    await ctx.slot.files.write_text("link", "new")
    await ctx.slot.files.write_text("dangling", "born")
    equal(await ctx.slot.files.read_text("real"), "new", "the target")
    equal(await ctx.slot.files.read_text("new"), "born", "the new target")
    kinds = {entry.name: entry.type for entry in await ctx.slot.files.list(".")}
    equal((kinds["link"], kinds["dangling"]), ("link", "link"), "kinds")


@check("files", "helper")
async def check_writing_keeps_hard_links(ctx: Context) -> None:
    """A file with two names has the new contents under both."""
    await ctx.slot.files.write_text("one", "old")
    await ctx.applet("link", "one", "two", check=True)
    await ctx.slot.files.write_text("one", "new")
    equal(await ctx.slot.files.read_text("two"), "new", "the other name")


@check("files", "ordinary-user")
async def check_writing_in_a_closed_directory(ctx: Context) -> None:
    """In a directory that takes no new files an old one is still written, in place; a new one is PermissionError."""
    await ctx.slot.files.write_text("d/old", "old")
    await ctx.slot.files.chmod("d", 0o555)
    await ctx.slot.files.write_text("d/old", "new")
    equal(await ctx.slot.files.read_text("d/old"), "new", "contents")
    with raises(PermissionError):
        await ctx.slot.files.write_text("d/new", "x")
    await ctx.slot.files.chmod("d", 0o755)


@check("files", "helper")
async def check_stat(ctx: Context) -> None:
    """Stat returns kind, size, mode, time and link count."""
    await ctx.slot.files.write_bytes("f", b"12345", mode=0o640)
    await ctx.slot.files.mkdir("d")
    await ctx.applet("symlink", "f", "l", check=True)
    stat = await ctx.slot.files.stat("f")
    equal((stat.type, stat.size, oct(stat.mode), stat.links, stat.name), ("file", 5, "0o640", 1, "f"), "the file")
    that(abs(stat.mtime - time.time()) < 300, f"mtime {stat.mtime} is far from now")
    equal((await ctx.slot.files.stat("d")).type, "dir", "the directory")
    link = next(entry for entry in await ctx.slot.files.list(".") if entry.name == "l")
    equal((link.type, link.target), ("link", "f"), "the link")
    with raises(FileNotFoundError, about="gone"):
        await ctx.slot.files.stat("gone")


@check("files")
async def check_exists(ctx: Context) -> None:
    """Exists is true for files and directories and false for missing paths, also below a file."""
    await ctx.slot.files.write_text("d/f", "")
    seen = [await ctx.slot.files.exists(path) for path in ("d", "d/f", "gone", "d/f/below")]
    equal(seen, [True, True, False, False], "d, d/f, gone, d/f/below")


@check("files")
async def check_list(ctx: Context) -> None:
    """List gives the entries of one directory by name, hidden ones too, and recursively everything below."""
    for name in ("b", "a", ".hidden", "d/e/f"):
        await ctx.slot.files.write_text(f"top/{name}", "")
    equal([entry.name for entry in await ctx.slot.files.list("top")], [".hidden", "a", "b", "d"], "names")
    deep = {entry.path.rpartition("top/")[2] for entry in await ctx.slot.files.list("top", recursive=True)}
    equal(deep, {".hidden", "a", "b", "d", "d/e", "d/e/f"}, "recursive")
    with raises(NotADirectoryError):
        await ctx.slot.files.list("top/a")
    with raises(FileNotFoundError):
        await ctx.slot.files.list("gone")


@check("files")
async def check_mkdir(ctx: Context) -> None:
    """Mkdir creates a directory; an existing one is FileExistsError."""
    await ctx.slot.files.mkdir("d")
    equal((await ctx.slot.files.stat("d")).type, "dir", "kind")
    with raises(FileExistsError):
        await ctx.slot.files.write_text("f", "")
        await ctx.slot.files.mkdir("f")


@check("files")
async def check_remove(ctx: Context) -> None:
    """Remove takes a file; a full directory only with recursive=True; a missing path is FileNotFoundError."""
    await ctx.slot.files.write_text("d/e/f", "")
    await ctx.slot.files.write_text("g", "")
    await ctx.slot.files.remove("g")
    with raises(OSError):
        await ctx.slot.files.remove("d")
    that(await ctx.slot.files.exists("d/e/f"), "the directory's contents went without recursive=True")
    await ctx.slot.files.remove("d", recursive=True)
    equal([await ctx.slot.files.exists(path) for path in ("g", "d")], [False, False], "remaining names")
    with raises(FileNotFoundError):
        await ctx.slot.files.remove("gone")


@check("files", "helper")
async def check_remove_never_follows_links(ctx: Context) -> None:
    """Removing a tree removes links in it, not their targets."""
    await ctx.slot.files.write_text("precious/f", "x")
    await ctx.slot.files.mkdir("t")
    await ctx.applet("symlink", f"{ctx.slot.workspace}/precious", "t/link", check=True)
    await ctx.slot.files.remove("t", recursive=True)
    that(await ctx.slot.files.exists("precious/f"), "a link was followed")


@check("files")
async def check_move(ctx: Context) -> None:
    """Move gives a file or a directory a new name, contents and mode unchanged, also into the slot's tmp."""
    await ctx.slot.files.write_bytes("a/f", b"x", mode=0o751)
    await ctx.slot.files.move("a", "b")
    await ctx.slot.files.move("b/f", f"{ctx.slot.tmp}/moved")
    stat = await ctx.slot.files.stat(f"{ctx.slot.tmp}/moved")
    equal((oct(stat.mode), stat.size, await ctx.slot.files.exists("a")), ("0o751", 1, False), "mode, size, old name")
    with raises(FileNotFoundError):
        await ctx.slot.files.move("gone", "c")


@check("files", "helper")
async def check_copy(ctx: Context) -> None:
    """Copy makes an independent copy of a file or a whole tree, with modes and links."""
    await ctx.slot.files.write_bytes("t/run", b"#!", mode=0o755)
    await ctx.applet("symlink", "run", "t/link", check=True)
    await ctx.slot.files.copy("t/run", "single")
    await ctx.slot.files.copy("t", "u", recursive=True)
    await ctx.slot.files.write_text("t/run", "changed")
    equal([await ctx.slot.files.read_text(path) for path in ("single", "u/run")], ["#!", "#!"], "contents")
    equal(oct((await ctx.slot.files.stat("u/run")).mode), "0o755", "mode")
    kinds = {entry.name: entry.target for entry in await ctx.slot.files.list("u")}
    equal(kinds, {"run": None, "link": "run"}, "links")


@check("files", "helper")
async def check_chmod(ctx: Context) -> None:
    """Chmod sets the mode; a file becomes a program by it."""
    argv = await ctx.argv("echo", "runs")
    await ctx.slot.files.chmod(argv[0], 0o644)
    equal((await ctx.slot.run(argv)).exit_code, 126, "exit code without the permission")
    await ctx.slot.files.chmod(argv[0], 0o755)
    equal((await ctx.slot.run(argv)).stdout, "runs\n", "output with it")


@check("files", "helper")
async def check_fifo_is_refused_at_once(ctx: Context) -> None:
    """Reading or writing a FIFO that nobody serves is an error at once and never waits."""
    await ctx.applet("fifo", "pipe", check=True)
    started = time.monotonic()
    with raises(OSError):
        await ctx.slot.files.read_bytes("pipe")
    with raises(OSError):
        await ctx.slot.files.write_bytes("pipe", b"x")
    that(time.monotonic() - started < 30, "it waited")
    equal((await ctx.slot.files.stat("pipe")).type, "fifo", "kind")


@check("files")
async def check_devices_are_refused_at_once(ctx: Context) -> None:
    """An endless device is refused and not read."""
    started = time.monotonic()
    with raises(OSError):
        await ctx.slot.files.read_bytes("/dev/zero")
    that(time.monotonic() - started < 30, "it waited")


@check("files")
async def check_path_through_a_file(ctx: Context) -> None:
    """A path that goes through a file is NotADirectoryError."""
    await ctx.slot.files.write_text("f", "")
    with raises(NotADirectoryError):
        await ctx.slot.files.read_text("f/below")


@check("files", "procfs")
async def check_files_without_a_size(ctx: Context) -> None:
    """A file of /proc, whose reported size is 0, is read whole."""
    that("Linux" in await ctx.slot.files.read_text("/proc/version"), "nothing was read")
