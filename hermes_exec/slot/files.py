"""Files of a slot: reading, writing, listing, changing, transferring and searching, done by the runner with the slot's
rights.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, BinaryIO, Literal

from hermes_exec.aio.tasks import run_to_end
from hermes_exec.channel.encoding import from_wire, shorten, to_wire
from hermes_exec.checks import validate_count, validate_size
from hermes_exec.errors import ConfigError, OutputLimitExceeded, ProtocolError
from hermes_exec.results import (
    FileStat,
    FileType,
    FileWritten,
    SearchFile,
    SearchMatch,
    SearchResult,
    SearchSkipped,
    TreeCopied,
)
from hermes_exec.slot.answers import integer, items, number, optional_path, text, texts
from hermes_exec.slot.command import user_params, validate_path
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

    Relative paths are relative to `slot.workdir`. With `user=`, in the slots and forms of `Slot.run`, a call has the
    rights and groups of that user, new files belong to it, and `~` at the start of a path is its home. Without `user=`,
    `~` is an ordinary name.

    A name that is not UTF-8 is passed as bytes, or as str with surrogate escapes; results use surrogate escapes. Every
    call raises the standard OSError for its failure (FileNotFoundError, PermissionError, IsADirectoryError,
    NotADirectoryError, FileExistsError, ENOSPC, …) with the path. FIFOs, sockets and devices are refused at once, and
    60 s without progress is a TimeoutError. An invalid argument is a ConfigError before anything is done, and so is a
    user that the slot does not allow. SlotClosed, SandboxDied, OutcomeUnknown and ChannelLost are as for `Slot.run`.
    """

    def __init__(self, scope: Callable[[], SlotScope]) -> None:
        self._current_scope = scope

    @property
    def _scope(self) -> SlotScope:
        return self._current_scope()

    async def read_bytes(
        self,
        path: RemotePath,
        offset: int = 0,
        length: int | None = None,
        limit_bytes: int = READ_LIMIT_BYTES,
        *,
        user: str | None = None,
    ) -> bytes:
        """Return the bytes of a file from `offset` on, at most `length` of them (None: to its end).

        Raises:
            OutputLimitExceeded: If that is more than `limit_bytes` (default 64 MiB); nothing is returned.
        """
        params: dict[str, Any] = {**_remote(path, user), "offset": validate_size(offset, "offset")}
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
            raise ProtocolError(f"the sandbox sent {size} bytes of {_display(path)} and reported another number")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read_text(
        self,
        path: RemotePath,
        encoding: str = "utf-8",
        errors: str = "strict",
        limit_bytes: int = READ_LIMIT_BYTES,
        *,
        user: str | None = None,
    ) -> str:
        """Return a whole file as text, with its line ends unchanged.

        Raises:
            UnicodeDecodeError: If it is not in that encoding.
            OutputLimitExceeded: If it has more than `limit_bytes`.
        """
        return (await self.read_bytes(path, limit_bytes=limit_bytes, user=user)).decode(encoding, errors)

    async def write_bytes(
        self,
        path: RemotePath,
        data: bytes,
        mode: int | None = None,
        parents: bool = True,
        append: bool = False,
        *,
        user: str | None = None,
    ) -> FileWritten:
        """Write a whole file atomically: readers see the old content or the new one, also when the call is cancelled.

        An existing file keeps its mode and owner, and a link is followed to its target. A file with several links, or
        in a directory that accepts no new files, is written in place once all content has arrived. Until then the
        content takes room in a temporary file beside it or in the slot's tmp. `mode` is 0o644 for a new file by
        default. `parents` creates missing directories. `append` adds to the end instead.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise ConfigError(f"data must be bytes, not {type(data).__name__}")
        params: dict[str, Any] = {**_remote(path, user), "parents": bool(parents), "append": bool(append)}
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
        user: str | None = None,
    ) -> FileWritten:
        """Write a whole file as `write_bytes`, from text. Line ends are written unchanged."""
        if not isinstance(text, str):
            raise ConfigError(f"text must be str, not {type(text).__name__}")
        data = text.encode(encoding)
        return await self.write_bytes(path, data, mode=mode, parents=parents, append=append, user=user)

    async def stat(self, path: RemotePath, follow: bool = True, *, user: str | None = None) -> FileStat:
        """Return the facts of a file; with `follow=False`, of a link itself."""
        return _stat(await self._call("stat", path, user, follow=bool(follow)))

    async def exists(self, path: RemotePath, *, user: str | None = None) -> bool:
        """Check whether a path exists; a dangling link does not. Raises PermissionError if the slot may not look."""
        try:
            await self.stat(path, user=user)
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
        user: str | None = None,
    ) -> builtins.list[FileStat]:
        """Return the entries of a directory, sorted by name; with `recursive` everything below it, without following
        links.

        `only` selects one type of entries, `name` one name. With `follow`, a link has the facts of its target file (and
        still its `target`); a dangling link has the type "link". A subdirectory that may not be read is listed without
        its entries; with `force`, subdirectories of the slot's user are made readable while they are listed.

        Raises:
            OutputLimitExceeded: If there are more than 100,000 entries and no `limit` is set.
        """
        most = LIST_LIMIT if limit is None else validate_count(limit, "limit")
        if only is not None and only not in FILE_TYPES:
            raise ConfigError(f"only must be one of {', '.join(FILE_TYPES)}, not {only!r}")
        wanted: dict[str, object] = {"recursive": bool(recursive), "limit": most}
        wanted |= {"follow": bool(follow), "force": bool(force)}
        wanted |= {} if only is None else {"only": only}
        wanted |= {} if name is None else {"name": to_wire(name, "name")}
        answer = await self._call("list", path, user, **wanted)
        if limit is None and answer.get("truncated") is True:
            raise OutputLimitExceeded(f"{_display(path)}: more than {LIST_LIMIT} entries")
        return [_stat(entry) for entry in items(answer, "entries")]

    async def mkdir(
        self,
        path: RemotePath,
        mode: int | None = None,
        parents: bool = False,
        exist_ok: bool = False,
        *,
        user: str | None = None,
    ) -> None:
        """Create a directory. Raises FileExistsError if the path exists, unless it is a directory and `exist_ok` is
        set.
        """
        more = {} if mode is None else {"mode": _validate_mode(mode)}
        await self._call("mkdir", path, user, parents=bool(parents), exist_ok=bool(exist_ok), **more)

    async def remove(
        self, path: RemotePath, recursive: bool = False, missing_ok: bool = False, *, user: str | None = None
    ) -> None:
        """Remove a file, a link or an empty directory, with `recursive` any directory.

        Raises:
            FileNotFoundError: If it does not exist, unless `missing_ok` is set.
        """
        await self._call("remove", path, user, recursive=bool(recursive), missing_ok=bool(missing_ok))

    async def move(
        self, source: RemotePath, target: RemotePath, overwrite: bool = True, *, user: str | None = None
    ) -> None:
        """Rename a file or directory, also across file systems. Replaces an existing file unless `overwrite=False`."""
        await self._call_with_pair("move", source, target, user, overwrite=bool(overwrite))

    async def copy(
        self, source: RemotePath, target: RemotePath, recursive: bool = False, *, user: str | None = None
    ) -> None:
        """Copy a file, or with `recursive` a directory; modes and links are kept."""
        await self._call_with_pair("copy", source, target, user, recursive=bool(recursive))

    async def chmod(self, path: RemotePath, mode: int, *, user: str | None = None) -> None:
        """Set the permission bits."""
        await self._call("chmod", path, user, mode=_validate_mode(mode))

    async def upload(self, local: LocalPath, remote: RemotePath, *, user: str | None = None) -> TreeCopied:
        """Copy a local file, or a directory with its contents, to `remote` in the slot.

        The transfer streams with bounded memory. Modes are kept without setuid and setgid bits. A directory is merged
        into an existing one; its links are kept, and the times of its files to the second. `refused` of the result
        names entries that were left out: special files, links that lead out of the tree, files that were removed
        meanwhile.
        """
        work = partial(upload, self._scope, os.fspath(local), _remote(remote, user, "remote"), _display(remote))
        return await run_to_end(work)

    async def download(
        self, remote: RemotePath, local: LocalPath, limit_bytes: int | None = None, *, user: str | None = None
    ) -> TreeCopied:
        """Copy a file, or a directory with its contents, from the slot to `local` on this host.

        The transfer is as for `upload`. Nothing is ever written outside `local`, whatever the slot sends, and no
        existing link is followed; missing parents are created. A device, FIFO or socket at `local` is a
        FileExistsError; within a directory it is named in `refused`.

        Raises:
            OutputLimitExceeded: If it has more than `limit_bytes` (default None: no limit), headers and holes included.
                The part that had arrived stays at `local`.
        """
        limit = None if limit_bytes is None else validate_count(limit_bytes, "limit_bytes")
        work = partial(
            download, self._scope, _remote(remote, user, "remote"), _display(remote), os.fspath(local), limit
        )
        return await run_to_end(work)

    async def save(
        self, remote: RemotePath, archive: BinaryIO, limit_bytes: int | None = None, *, user: str | None = None
    ) -> TreeCopied:
        """Write a file, or a directory with its contents, as a tar archive into an open binary file, for `restore`.

        Nothing is unpacked here, so modes, links and names are exact. `refused` of the result names entries that an
        archive cannot hold: special files, unreadable files, and those nested more than 512 deep.

        Raises:
            OutputLimitExceeded: If it has more than `limit_bytes` (default None: no limit).
        """
        limit = None if limit_bytes is None else validate_count(limit_bytes, "limit_bytes")
        work = partial(save, self._scope, _remote(remote, user, "remote"), _display(remote), archive, limit)
        return await run_to_end(work)

    async def restore(self, archive: BinaryIO, remote: RemotePath, *, user: str | None = None) -> TreeCopied:
        """Unpack an archive of `save`, from its current position, into the directory `remote`.

        A missing directory is created. A single file has its name there. Links keep their targets, also outside the
        directory.
        """
        work = partial(restore, self._scope, archive, _remote(remote, user, "remote"), _display(remote))
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
        user: str | None = None,
    ) -> SearchResult:
        """Find lines (`target="content"`) by regular expression (RE2 syntax) or plain text, or files by name.

        A name pattern (`pattern` with `target="files"`, or `glob`) without a slash matches at any depth. With slashes
        it matches paths below `path`, or absolute ones, as in `glob`.

        Ignore files (.gitignore, .ignore) apply unless `ignore_files=False`. Hidden files are skipped unless
        `hidden=True` or the name pattern has a part with a leading dot, binary files (a NUL character in the first
        8 KiB) always; `skipped` of the result counts what was left out. Text is UTF-8, UTF-16 with a byte order mark,
        or line by line Latin-1; U+FFFD stands for other bytes. The totals also count matches that `limit` and `offset`
        leave out; `max_line` bounds each line in bytes of UTF-8.

        Raises:
            ConfigError (a ValueError): If the pattern is invalid, has more than 16 KiB, or requires a line end: each
                line is searched by itself. The message has the reason.
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
        return _search_result(await self._call("search", path, user, **params))

    async def glob(
        self, pattern: str, path: RemotePath = ".", limit: int | None = None, *, user: str | None = None
    ) -> builtins.list[str]:
        """Return the paths that match a pattern (`*`, `?`, `[…]`, `**` across directories), newest first.

        Hidden names match only if a part of the pattern has a leading dot. Links match, but are not followed.

        Raises:
            OutputLimitExceeded: If more than 100,000 match and no `limit` is set.
        """
        most = LIST_LIMIT if limit is None else validate_count(limit, "limit")
        answer = await self._call("glob", path, user, pattern=to_wire(pattern, "pattern"), limit=most)
        paths = texts(answer, "paths")
        if limit is None and integer(answer, "total") > len(paths):
            raise OutputLimitExceeded(f"{pattern!r} matches more than {LIST_LIMIT} paths")
        return builtins.list(paths)

    async def _call(self, name: str, path: RemotePath, user: str | None, /, **params: object) -> dict[str, Any]:
        longest_s = WALK_S if name in ("list", "remove", "search", "glob") else STALL_S
        params |= _remote(path, user)
        return await self._scope.call(f"file.{name}", params, timeout_s=longest_s, path=_display(path))

    async def _call_with_pair(
        self, name: str, source: RemotePath, target: RemotePath, user: str | None, /, **params: object
    ) -> None:
        params |= {"source": validate_path(source, "source"), "target": validate_path(target, "target")}
        await self._scope.call(f"file.{name}", params | user_params(user), timeout_s=WALK_S)


def _remote(path: RemotePath, user: str | None, name: str = "path") -> dict[str, Any]:
    return {"path": validate_path(path, name), **user_params(user)}


def _display(path: RemotePath) -> str:
    """Return a path as errors show it."""
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
    skipped = tuple(
        SearchSkipped(text(entry, "reason"), integer(entry, "count"), texts(entry, "paths"))
        for entry in items(answer, "skipped")
    )
    return SearchResult(
        matches=matches,
        files=files,
        total=integer(answer, "total"),
        total_files=integer(answer, "total_files"),
        truncated=answer.get("truncated") is True,
        binary_skipped=sum(entry.count for entry in skipped if entry.reason == "binary"),
        errors=texts(answer, "errors"),
        skipped=skipped,
    )
