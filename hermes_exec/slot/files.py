"""Files of a slot: read, write, look, change, move whole trees, search; done by the runner with the slot's rights."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, BinaryIO, Literal

from hermes_exec.aio.tasks import run_to_end
from hermes_exec.channel.encoding import WireBytes, from_wire, shorten, to_wire
from hermes_exec.checks import validate_count, validate_size
from hermes_exec.errors import ConfigError, OutputLimitExceeded, ProtocolError
from hermes_exec.results import FileStat, FileType, FileWritten, SearchFile, SearchMatch, SearchResult, TreeCopied
from hermes_exec.slot.answers import integer, items, number, optional_path, text, texts
from hermes_exec.slot.command import validate_path
from hermes_exec.slot.scope import SlotScope
from hermes_exec.slot.transfer.transfer import STALL_S, download, open_transfer, restore, save, upload

RemotePath = str | bytes | os.PathLike[str]
LocalPath = str | os.PathLike[str]
READ_LIMIT_BYTES = 64 << 20
LIST_LIMIT = 100_000
MAX_MODE = 0o7777
FILE_TYPES = ("file", "dir", "link", "fifo", "socket", "char", "block")
WALK_S = 1900.0


class Files:
    """The files of a slot, as its own processes see them.

    Relative paths are relative to `slot.workdir`. A name that is not UTF-8 is given as bytes, or as str with surrogate
    escapes, and comes back as the latter. Every call raises the standard OSError of what it met (FileNotFoundError,
    PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError, ENOSPC, …) with the path; FIFOs, sockets
    and devices are refused at once, and 60 s without progress is a TimeoutError. ConfigError says, before
    anything is done, that an argument cannot be; SlotClosed, SandboxDied, OutcomeUnknown and ChannelLost are as for
    `Slot.run`.
    """

    def __init__(self, scope: Callable[[], SlotScope]) -> None:
        self._current_scope = scope

    @property
    def _scope(self) -> SlotScope:
        return self._current_scope()

    async def read_bytes(
        self, path: RemotePath, offset: int = 0, length: int | None = None, limit_bytes: int = READ_LIMIT_BYTES
    ) -> bytes:
        """The bytes of a file from `offset` on, at most `length` of them (None: to its end).

        Raises:
            OutputLimitExceeded: that would be more than `limit_bytes` (default 64 MiB); nothing is returned.
        """
        params: dict[str, Any] = {"path": validate_path(path, "path"), "offset": validate_size(offset, "offset")}
        params["limit"] = limit_bytes = validate_size(limit_bytes, "limit_bytes")
        if length is not None:
            params["length"] = validate_size(length, "length")
        parts, size = [], 0
        async with open_transfer(self._scope, "file.read", params, _display(path)) as move:
            while piece := await move.receive():
                parts.append(piece)
                size += len(piece)
                if size > limit_bytes:
                    raise OutputLimitExceeded(f"{_display(path)}: more than {limit_bytes} bytes")
            answer = move.conversation.result()
        if integer(answer, "read") != size:
            raise ProtocolError(f"the sandbox sent {size} bytes of {_display(path)} and said otherwise")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read_text(
        self, path: RemotePath, encoding: str = "utf-8", errors: str = "strict", limit_bytes: int = READ_LIMIT_BYTES
    ) -> str:
        """A whole file as text, line ends as they are.

        Raises:
            UnicodeDecodeError: it is not in that encoding.
            OutputLimitExceeded: it has more than `limit_bytes`.
        """
        return (await self.read_bytes(path, limit_bytes=limit_bytes)).decode(encoding, errors)

    async def write_bytes(
        self, path: RemotePath, data: bytes, mode: int | None = None, parents: bool = True, append: bool = False
    ) -> FileWritten:
        """Write a file whole, atomically: others see the old content or the new one, also when the call is cancelled.

        An existing file keeps its mode and owner, and a link is followed to its target. A file with several links, or
        in a directory that takes no new files, is written in place once the content has come; until then that takes
        room in a temporary file beside it or in the slot's tmp. `mode` None is 0o644 for a new file; `parents` makes
        missing directories; `append` adds to the end instead.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise ConfigError(f"data must be bytes, not {type(data).__name__}")
        params: dict[str, Any] = {"path": validate_path(path, "path"), "parents": bool(parents), "append": bool(append)}
        if mode is not None:
            params["mode"] = _validate_mode(mode)
        async with open_transfer(self._scope, "file.write", params, _display(path)) as move:
            await move.send(bytes(data))
            answer = await move.finish()
        return FileWritten(
            written=integer(answer, "written"),
            created=answer.get("created") is True,
            dirs_created=integer(answer, "dirs_created"),
        )

    async def write_text(
        self,
        path: RemotePath,
        text: str,
        encoding: str = "utf-8",
        *,
        mode: int | None = None,
        parents: bool = True,
        append: bool = False,
    ) -> FileWritten:
        """As `write_bytes`, with text. Line ends are written as they are."""
        if not isinstance(text, str):
            raise ConfigError(f"text must be str, not {type(text).__name__}")
        return await self.write_bytes(path, text.encode(encoding), mode=mode, parents=parents, append=append)

    async def stat(self, path: RemotePath, follow: bool = True) -> FileStat:
        """Facts of a file; of a link itself with `follow=False`."""
        return _stat(await self._call("stat", path, follow=bool(follow)))

    async def exists(self, path: RemotePath) -> bool:
        """Whether something is there; a link that leads nowhere is not. PermissionError where the slot may not look."""
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def list(
        self,
        path: RemotePath = ".",
        recursive: bool = False,
        limit: int | None = None,
        *,
        only: FileType | None = None,
        name: str | bytes | None = None,
        follow: bool = False,
        force: bool = False,
    ) -> builtins.list[FileStat]:
        """Return what is in a directory, sorted by name; with `recursive` everything below it, links not entered.

        `only` leaves out entries of other types, `name` those of other names. With `follow` a link is described as what
        it leads to (its `target` is still there), and has the type "link" only where that is nothing. Directories below
        that may not be read are listed without what is in them; with `force` those of the slot's user are made readable
        while they are listed.

        Raises:
            OutputLimitExceeded: it holds more than 100,000 entries and no `limit` says that fewer are enough.
        """
        most = LIST_LIMIT if limit is None else validate_count(limit, "limit")
        if only is not None and only not in FILE_TYPES:
            raise ConfigError(f"only must be one of {', '.join(FILE_TYPES)}, not {only!r}")
        wanted: dict[str, object] = {"recursive": bool(recursive), "limit": most}
        wanted |= {"follow": bool(follow), "force": bool(force)}
        wanted |= {} if only is None else {"only": only}
        wanted |= {} if name is None else {"name": to_wire(name, "name")}
        answer = await self._call("list", path, **wanted)
        if limit is None and answer.get("truncated") is True:
            raise OutputLimitExceeded(f"{_display(path)}: more than {LIST_LIMIT} entries")
        return [_stat(entry) for entry in items(answer, "entries")]

    async def mkdir(
        self, path: RemotePath, mode: int | None = None, parents: bool = False, exist_ok: bool = False
    ) -> None:
        """Make a directory. FileExistsError when something is there, unless `exist_ok` and it is a directory."""
        more = {} if mode is None else {"mode": _validate_mode(mode)}
        await self._call("mkdir", path, parents=bool(parents), exist_ok=bool(exist_ok), **more)

    async def remove(self, path: RemotePath, recursive: bool = False, missing_ok: bool = False) -> None:
        """Remove a file, a link, an empty directory or, with `recursive`, any. FileNotFoundError unless
        `missing_ok`.
        """
        await self._call("remove", path, recursive=bool(recursive), missing_ok=bool(missing_ok))

    async def move(self, source: RemotePath, target: RemotePath, overwrite: bool = True) -> None:
        """Rename a file or directory, also over file systems. A file in the place is replaced unless
        `overwrite=False`.
        """
        await self._call_with_pair("move", source, target, overwrite=bool(overwrite))

    async def copy(self, source: RemotePath, target: RemotePath, recursive: bool = False) -> None:
        """Copy a file, or with `recursive` a directory; modes and links are kept."""
        await self._call_with_pair("copy", source, target, recursive=bool(recursive))

    async def chmod(self, path: RemotePath, mode: int) -> None:
        """Set the permission bits."""
        await self._call("chmod", path, mode=_validate_mode(mode))

    async def upload(self, local: LocalPath, remote: RemotePath) -> TreeCopied:
        """Copy a local file, or a directory with all that is in it, to `remote` in the slot.

        Streams with bounded memory. Modes are kept, setuid and setgid bits dropped; of what is in a directory links
        too, and times of files, to the second. A directory is merged into one that is there. `refused` of the result
        names what was left out: special files, links that would lead out of the tree, what was removed meanwhile.
        """
        work = partial(upload, self._scope, os.fspath(local), validate_path(remote, "remote"), _display(remote))
        return await run_to_end(work)

    async def download(self, remote: RemotePath, local: LocalPath, limit_bytes: int | None = None) -> TreeCopied:
        """Copy a file, or a directory with all that is in it, from the slot to `local` on this host.

        As `upload`. Nothing is ever written outside `local`, whatever the slot sends, and no link that is there is
        written through; missing parents are made. A device, FIFO or socket at `local` is not replaced: FileExistsError,
        within a directory it is named in `refused`. More than `limit_bytes` (default None: no limit; headers and holes
        count too) is OutputLimitExceeded; what had come by then stays at `local`.
        """
        limit = None if limit_bytes is None else validate_count(limit_bytes, "limit_bytes")
        source = validate_path(remote, "remote")
        work = partial(download, self._scope, source, _display(remote), os.fspath(local), limit)
        return await run_to_end(work)

    async def save(self, remote: RemotePath, archive: BinaryIO, limit_bytes: int | None = None) -> TreeCopied:
        """Write a file, or a directory with all that is in it, as a tar archive into an open binary file, for
        `restore`.

        Nothing of it is unpacked here, so that modes, links and names are what they were. More than `limit_bytes`
        (default None: no limit) is OutputLimitExceeded; `refused` of the result names what no archive holds: special
        files, what may not be read, what is nested more than 512 deep.
        """
        limit = None if limit_bytes is None else validate_count(limit_bytes, "limit_bytes")
        work = partial(save, self._scope, validate_path(remote, "remote"), _display(remote), archive, limit)
        return await run_to_end(work)

    async def restore(self, archive: BinaryIO, remote: RemotePath) -> TreeCopied:
        """Unpack what `save` wrote, from where the file stands, below the directory `remote`, which is made where it is
        missing; a single file has its name there. Links lead where they led, also out of the directory.
        """
        work = partial(restore, self._scope, archive, validate_path(remote, "remote"), _display(remote))
        return await run_to_end(work)

    async def search(
        self,
        pattern: str,
        path: RemotePath = ".",
        *,
        regex: bool = True,
        ignore_case: bool = False,
        target: Literal["content", "files"] = "content",
        glob: str | None = None,
        context: int = 0,
        limit: int = 1000,
        offset: int = 0,
        hidden: bool = False,
        ignore_files: bool = True,
        max_line: int = 4096,
    ) -> SearchResult:
        """Find lines (`target="content"`) by regular expression (RE2 syntax) or plain text, or files by name.

        Ignore files (.gitignore, .ignore) count unless `ignore_files=False`; hidden files are skipped unless
        `hidden=True`, binary ones always. The totals count everything, also what `limit` and `offset` leave out;
        `max_line` bounds each line in bytes.

        Raises:
            ConfigError (a ValueError): the pattern is not valid; the message says where.
        """
        if target not in ("content", "files"):
            raise ConfigError(f"target must be 'content' or 'files', not {target!r}")
        params: dict[str, Any] = {
            "pattern": to_wire(pattern, "pattern"),
            "regex": bool(regex),
            "ignore_case": bool(ignore_case),
            "target": target,
            "context": validate_size(context, "context"),
            "limit": validate_size(limit, "limit"),
            "offset": validate_size(offset, "offset"),
            "hidden": bool(hidden),
            "ignore_files": bool(ignore_files),
            "max_line": validate_count(max_line, "max_line"),
        }
        if glob is not None:
            params["glob"] = to_wire(glob, "glob")
        return _search_result(await self._call("search", path, **params))

    async def glob(self, pattern: str, path: RemotePath = ".", limit: int | None = None) -> builtins.list[str]:
        """Paths that match a pattern (`*`, `?`, `[…]`, `**` through directories), sorted.

        Raises:
            OutputLimitExceeded: more than 100,000 match and no `limit` says that fewer are enough.
        """
        most = LIST_LIMIT if limit is None else validate_count(limit, "limit")
        answer = await self._call("glob", path, pattern=to_wire(pattern, "pattern"), limit=most)
        paths = texts(answer, "paths")
        if limit is None and integer(answer, "total") > len(paths):
            raise OutputLimitExceeded(f"{pattern!r} matches more than {LIST_LIMIT} paths")
        return builtins.list(paths)

    async def _call(self, name: str, path: RemotePath, /, **params: object) -> dict[str, Any]:
        wired: WireBytes = validate_path(path, "path")
        longest_s = WALK_S if name in ("list", "remove", "search", "glob") else STALL_S
        return await self._scope.call(
            f"file.{name}", {"path": wired, **params}, timeout_s=longest_s, path=_display(path)
        )

    async def _call_with_pair(self, name: str, source: RemotePath, target: RemotePath, **params: object) -> None:
        ends = {"source": validate_path(source, "source"), "target": validate_path(target, "target")}
        await self._scope.call(f"file.{name}", {**ends, **params}, timeout_s=WALK_S)


def _display(path: RemotePath) -> str:
    """A path as errors show it."""
    return os.fsdecode(path)


def _validate_mode(mode: int) -> int:
    if validate_size(mode, "mode") > MAX_MODE:
        raise ConfigError(f"mode must be permission bits, at most 0o7777, not {mode!r}")
    return mode


def _stat(entry: Mapping[str, Any]) -> FileStat:
    file_type = entry.get("type")
    if file_type not in FILE_TYPES:
        raise ProtocolError(f"the sandbox sent a file of type {shorten(file_type)}")
    return FileStat(
        path=from_wire(entry.get("path"), "path"),
        name=from_wire(entry.get("name"), "name"),
        type=file_type,
        size=integer(entry, "size"),
        mode=integer(entry, "mode"),
        uid=integer(entry, "uid"),
        gid=integer(entry, "gid"),
        mtime=number(entry, "mtime"),
        links=integer(entry, "links"),
        target=optional_path(entry, "target"),
        id=text(entry, "id"),
    )


def _search_result(answer: Mapping[str, Any]) -> SearchResult:
    matches = tuple(
        SearchMatch(
            path=from_wire(entry.get("path"), "path"),
            line=integer(entry, "line"),
            column=integer(entry, "column"),
            text=from_wire(entry.get("text"), "text"),
            before=texts(entry, "before"),
            after=texts(entry, "after"),
        )
        for entry in items(answer, "matches")
    )
    files = tuple(
        SearchFile(from_wire(entry.get("path"), "path"), integer(entry, "count"), number(entry, "mtime"))
        for entry in items(answer, "files")
    )
    return SearchResult(
        matches=matches,
        files=files,
        total=integer(answer, "total"),
        total_files=integer(answer, "total_files"),
        truncated=answer.get("truncated") is True,
        binary_skipped=integer(answer, "binary_skipped"),
        errors=texts(answer, "errors"),
    )
