"""Reading and writing file contents."""

from __future__ import annotations

import anyio

from hermes_exec.errors import OutputLimitExceeded
from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.expect import equal, raises, that
from hermes_exec.testing.conformance.registry import check

EVERY_BYTE = bytes(range(256))
NOT_UTF8 = b"\xc3\x28"


async def _round_trip(ctx: Context, name: str, data: bytes | str) -> None:
    files = ctx.slot.files
    if isinstance(data, str):
        await files.write_text(name, data)
        equal(await files.read_text(name), data, name)
    else:
        await files.write_bytes(name, data)
        equal(await files.read_bytes(name), data, name)


@check("files")
async def check_text_file_round_trip(ctx: Context) -> None:
    """Text with line ends and a hash sign comes back as it was written."""
    await _round_trip(ctx, "plain.txt", "great #content\nincluding newlines\r\nno final newline")


@check("files")
async def check_utf8_file_round_trip(ctx: Context) -> None:
    """Text outside ASCII comes back as it was written."""
    await _round_trip(ctx, "utf.txt", "✨☽︎✨🌞 café 中文 ½")


@check("files")
async def check_binary_file_round_trip(ctx: Context) -> None:
    """Every byte value, NUL and invalid UTF-8 included, survives writing and reading."""
    await _round_trip(ctx, "bytes.bin", EVERY_BYTE * 300 + NOT_UTF8)


@check("files", alone=True)
async def check_large_binary_file(ctx: Context) -> None:
    """A file of 50 MiB is written and read whole."""
    await _round_trip(ctx, "large.bin", EVERY_BYTE * (50 * 4096))


@check("files")
async def check_absolute_path_makes_directories(ctx: Context) -> None:
    """Writing to an absolute path makes the directories that are missing."""
    await _round_trip(ctx, f"{ctx.slot.tmp}/{ctx.mark}/a/b.txt", "absolutely in a directory")


@check("files")
async def check_relative_path_makes_directories(ctx: Context) -> None:
    """Writing to a relative path makes the directories that are missing, below the workspace."""
    await _round_trip(ctx, "rel/deep/er.txt", "relatively in a directory")
    equal(
        await ctx.slot.files.read_text(f"{ctx.slot.workspace}/rel/deep/er.txt"),
        "relatively in a directory",
        "by its absolute name",
    )


@check("files")
async def check_missing_parents_are_not_made_unasked(ctx: Context) -> None:
    """With parents=False a missing directory is FileNotFoundError and nothing is made."""
    with raises(FileNotFoundError):
        await ctx.slot.files.write_bytes("absent/file", b"x", parents=False)
    that(not await ctx.slot.files.exists("absent"), "the directory was made")


@check("files", "helper")
async def check_empty_file_made_by_a_command(ctx: Context) -> None:
    """A file of no bytes that a command made reads as empty text."""
    await ctx.applet("write", "empty", stdin=b"")
    equal(await ctx.slot.files.read_text("empty"), "", "text")


@check("files")
async def check_empty_text_file(ctx: Context) -> None:
    """Empty text makes an empty file."""
    await _round_trip(ctx, "empty.txt", "")


@check("files")
async def check_empty_binary_file(ctx: Context) -> None:
    """No bytes make an empty file."""
    await _round_trip(ctx, "empty.bin", b"")


@check("files")
async def check_missing_file_is_told_by_name(ctx: Context) -> None:
    """Reading a missing file is FileNotFoundError and names the path."""
    with raises(FileNotFoundError, about="nonexistent"):
        await ctx.slot.files.read_text("nonexistent")


@check("files")
async def check_url_like_name_is_a_missing_file(ctx: Context) -> None:
    """A name that looks like an address is a path like any other."""
    with raises(FileNotFoundError, about="wikipedia"):
        await ctx.slot.files.read_text("https:/en.wikipedia.org/wiki/Bart%C5%82omiej")


@check("files", "ordinary-user")
async def check_unreadable_file_is_permission_error(ctx: Context) -> None:
    """Files are read with the slot's own rights: a mode without read permission is PermissionError."""
    await ctx.slot.files.write_text("closed.txt", "inaccessible")
    await ctx.slot.files.chmod("closed.txt", 0o200)
    with raises(PermissionError, about="closed.txt"):
        await ctx.slot.files.read_text("closed.txt")


@check("files")
async def check_reading_a_directory_is_told(ctx: Context) -> None:
    """Reading a directory is IsADirectoryError with `directory` in its message."""
    await ctx.slot.files.mkdir("directory")
    with raises(IsADirectoryError, about="directory"):
        await ctx.slot.files.read_text("directory")


@check("files")
async def check_read_limit(ctx: Context) -> None:
    """A file above limit_bytes raises OutputLimitExceeded and is never cut silently."""
    await ctx.slot.files.write_bytes("large.txt", b"a" * 2048)
    with raises(OutputLimitExceeded, about="1024"):
        await ctx.slot.files.read_bytes("large.txt", limit_bytes=1024)
    equal(len(await ctx.slot.files.read_bytes("large.txt", limit_bytes=2048)), 2048, "at the limit")


@check("files")
async def check_read_part_of_a_file(ctx: Context) -> None:
    """Offset and length read that part, and nothing behind the end."""
    await ctx.slot.files.write_bytes("digits", b"0123456789")
    equal(await ctx.slot.files.read_bytes("digits", offset=3, length=4), b"3456", "the middle")
    equal(await ctx.slot.files.read_bytes("digits", offset=8, length=99), b"89", "over the end")
    equal(await ctx.slot.files.read_bytes("digits", offset=99), b"", "behind the end")


@check("files")
async def check_text_to_a_name_with_a_space(ctx: Context) -> None:
    """A space in the name is part of the name, for text."""
    await _round_trip(ctx, "file with space.txt", "to the moon")


@check("files")
async def check_bytes_to_a_name_with_a_space(ctx: Context) -> None:
    """A space in the name is part of the name, for bytes."""
    await _round_trip(ctx, "file with space.bin", NOT_UTF8)


@check("files")
async def check_text_over_a_directory_is_told(ctx: Context) -> None:
    """Writing text to a directory is IsADirectoryError with `directory` in its message."""
    await ctx.slot.files.write_text("d/file", "unused")
    with raises(IsADirectoryError, about="directory"):
        await ctx.slot.files.write_text("d", "dummy")


@check("files")
async def check_bytes_over_a_directory_are_told(ctx: Context) -> None:
    """Writing bytes to a directory is IsADirectoryError with `directory` in its message."""
    await ctx.slot.files.write_bytes("d/file", b"unused")
    with raises(IsADirectoryError, about="directory"):
        await ctx.slot.files.write_bytes("d", NOT_UTF8)


async def _read_only(ctx: Context, data: bytes) -> None:
    await ctx.slot.files.write_bytes("locked", b"impervious")
    await ctx.slot.files.chmod("locked", 0o444)
    with raises(PermissionError, about="locked"):
        await ctx.slot.files.write_bytes("locked", data)
    equal(await ctx.slot.files.read_bytes("locked"), b"impervious", "contents")


@check("files", "ordinary-user")
async def check_text_over_a_read_only_file(ctx: Context) -> None:
    """A read-only file is PermissionError and keeps its text."""
    await _read_only(ctx, b"this won't stick")


@check("files", "ordinary-user")
async def check_bytes_over_a_read_only_file(ctx: Context) -> None:
    """A read-only file is PermissionError and keeps its bytes."""
    await _read_only(ctx, NOT_UTF8)


@check("files")
async def check_text_replaces_an_old_file(ctx: Context) -> None:
    """Writing text replaces the whole old contents."""
    await ctx.slot.files.write_text("again", "mundane, and much longer than the new one")
    await _round_trip(ctx, "again", "altered")


@check("files")
async def check_bytes_replace_an_old_file(ctx: Context) -> None:
    """Writing bytes replaces the whole old contents."""
    await ctx.slot.files.write_bytes("again", NOT_UTF8 * 100)
    await _round_trip(ctx, "again", b"\xc3\x29")


@check("files")
async def check_append(ctx: Context) -> None:
    """append=True adds to the end, and makes the file when there is none."""
    await ctx.slot.files.write_bytes("log", b"one\n", append=True)
    await ctx.slot.files.write_bytes("log", b"two\n", append=True)
    equal(await ctx.slot.files.read_bytes("log"), b"one\ntwo\n", "contents")


@check("files")
async def check_readers_never_see_half_a_file(ctx: Context) -> None:
    """A file that is being replaced reads as the old or the new one, never as something between."""
    sizes = (200_000, 300_000)
    await ctx.slot.files.write_bytes("whole", b"a" * sizes[0])

    async def write() -> None:
        for i in range(12):
            await ctx.slot.files.write_bytes("whole", (b"b", b"a")[i % 2] * sizes[(i + 1) % 2])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        for _ in range(25):
            seen = await ctx.slot.files.read_bytes("whole")
            that(seen in (b"a" * sizes[0], b"b" * sizes[1]), f"a mixture of {len(seen)} bytes was read")


@check("files")
async def check_cancelled_write_keeps_the_old_file(ctx: Context) -> None:
    """A write that is cancelled on its way leaves the old contents and no other file."""
    await ctx.slot.files.write_bytes("kept", b"old")
    new = b"n" * (24 << 20)
    for delay_s in (0.0, 0.005, 0.02):
        with anyio.move_on_after(delay_s):
            await ctx.slot.files.write_bytes("kept", new)
        seen = await ctx.slot.files.read_bytes("kept")
        that(seen in (b"old", new), f"{len(seen)} bytes after a cancelled write")
        await ctx.slot.files.write_bytes("kept", b"old")
    names = [entry.name for entry in await ctx.slot.files.list(".")]
    equal(names, ["kept"], "names in the workspace")


@check("files")
async def check_many_files_at_once(ctx: Context) -> None:
    """A hundred files written and read side by side each keep their own contents."""

    async def one(i: int) -> None:
        await _round_trip(ctx, f"many/{i}", f"{i} " * (i + 1))

    async with anyio.create_task_group() as tasks:
        for i in range(100):
            tasks.start_soon(one, i)
    equal(len(await ctx.slot.files.list("many")), 100, "files")
