"""The read_file tool: pages of a text file with line numbers."""

from __future__ import annotations

import difflib
import posixpath
from functools import partial
from typing import Any

import anyio.to_thread

from hermes_exec.errors import ExecError
from hermes_exec.results import FileStat
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.os_errors import translate_os_errors
from hermes_exec.tools.call.results import CallOutcome
from hermes_exec.tools.files import documents
from hermes_exec.tools.files.paging import PageReader
from hermes_exec.tools.files.textfile import is_binary
from hermes_exec.tools.state.file_views import Page
from hermes_exec.tools.state.tool_state import ToolState

_CHUNK_BYTES = 4 << 20
_MAX_BYTES = 1 << 30
_MAX_LISTED = 5_000
_MAX_COMPARED = 1_000_000
_LARGE_BYTES = 512 << 10
_IMAGES = {"png", "jpg", "jpeg", "gif", "bmp", "webp", "ico", "tif", "tiff", "heic", "avif"}
_NAMES = {"char": "character device", "block": "block device", "fifo": "named pipe", "link": "broken link"}
_UNCHANGED = (
    "File unchanged since last read. The content from the earlier read_file result in this conversation "
    "is still current: refer to that."
)


async def read_file(state: ToolState, arguments: dict[str, Any]) -> CallOutcome:
    """Return `limit` lines from line `offset` on. The file is read through the slot, with the slot's rights."""
    display_path, offset, limit = arguments["path"], arguments["offset"], arguments["limit"]
    path = state.resolve(display_path)
    stat = await _stat(state, display_path, path)
    reader = PageReader(offset, limit, state.options.read_chars, state.options.read_line_chars)
    with translate_os_errors(display_path):
        if documents.is_document(path):
            await _read_document(state, path, stat.size, reader)
        else:
            refusal = await _read_text(state, path, stat.size, reader)
            if refusal is not None:
                return refusal
    page = reader.page()
    data: dict[str, object] = {
        "content": page.content,
        "total_lines": page.total_lines,
        "file_size": stat.size,
        "truncated": page.truncated,
    }
    if page.truncated:
        last = page.next_offset - 1
        data |= {"truncated_by": page.truncated_by, "next_offset": page.next_offset}
        data["hint"] = (
            f"Showing lines {offset}-{last} of {page.total_lines}. Use offset={page.next_offset} to continue."
        )
    elif page.total_lines and offset > page.total_lines:
        data["hint"] = f"The file has {page.total_lines} lines; line {offset} is past its end."
    if stat.size > _MAX_BYTES:
        data["_warning"] = f"Only the first {_MAX_BYTES >> 30} GiB of the file were read; total_lines counts those."
    elif page.cut_lines:
        data["_warning"] = (
            f"{page.cut_lines} line(s) are longer than {state.options.read_line_chars} characters and were cut."
        )
    if page.encoding != "utf-8":
        data["encoding"] = page.encoding
    if page.truncated and stat.size > _LARGE_BYTES and limit > 200:
        data["_hint"] = (
            f"This file is large ({stat.size:,} bytes). Read only the section you need with offset and limit, or "
            "use search_files."
        )
    return CallOutcome(
        data, settle=partial(_settle, state, display_path, Page(path, offset, limit), page.fingerprint, data)
    )


def _settle(
    state: ToolState, display_path: str, page: Page, fingerprint: bytes, data: dict[str, object]
) -> CallOutcome:
    """Record the page as seen by the model, and replace text that the model has already seen."""
    state.views.record(page.path, fingerprint)
    if state.options.skip_unchanged_reads and not state.code_calls:
        repeats = state.views.count_repeats(page, fingerprint)
        if repeats:
            return _repeat_outcome(display_path, repeats)
    return CallOutcome(data)


async def _stat(state: ToolState, display_path: str, path: str) -> FileStat:
    try:
        with translate_os_errors(display_path):
            stat = await state.slot.files.stat(path)
    except ToolFailure as failure:
        if failure.kind not in ("not_found", "not_a_directory"):
            raise
        similar = await similar_files(state, path)
        more = {"similar_files": similar} if similar else {}
        raise ToolFailure("not_found", f"File not found: {display_path}", **more) from None
    if stat.type == "dir":
        raise ToolFailure(
            "is_directory",
            f"{display_path} is a directory. List it with search_files (target='files') or ls in the terminal.",
        )
    if stat.type != "file":
        raise ToolFailure(
            "not_a_file",
            f"{display_path} is a {_NAMES.get(stat.type, stat.type)} and cannot be read: it may block or never end.",
        )
    return stat


async def similar_files(state: ToolState, path: str) -> list[str]:
    """Return up to five paths next to a missing file whose names resemble its own.

    Empty if the directory cannot be listed.
    """
    directory, name = posixpath.split(path)
    try:
        entries = await state.slot.files.list(directory or "/", limit=_MAX_LISTED)
    except OSError as error:
        if isinstance(error, ExecError):
            raise
        return []
    names = {entry.name.lower(): entry.name for entry in entries if entry.type in ("file", "link")}
    near = await anyio.to_thread.run_sync(near_names, name.lower(), list(names))
    return [posixpath.join(directory, names[match]) for match in near]


def near_names(name: str, others: list[str]) -> list[str]:
    """Return the names that are most similar to `name`, like `difflib.get_close_matches` with n=5 and cutoff=0.5.

    The likeliest names are compared first, names that cannot be among the five are skipped, and at most `_MAX_COMPARED`
    pairs of characters are compared.
    """
    matcher = difflib.SequenceMatcher()
    matcher.set_seq2(name)
    likely: list[tuple[float, str]] = []
    for other in others:
        matcher.set_seq1(other)
        if matcher.real_quick_ratio() >= 0.5 and (upper_bound := matcher.quick_ratio()) >= 0.5:
            likely.append((upper_bound, other))
    near: list[tuple[float, str]] = []
    budget = _MAX_COMPARED
    for upper_bound, other in sorted(likely, reverse=True):
        budget -= len(name) * len(other)
        if budget < 0 or (len(near) == 5 and upper_bound < near[-1][0]):
            break
        matcher.set_seq1(other)
        if (ratio := matcher.ratio()) >= 0.5:
            near = sorted([*near, (ratio, other)], reverse=True)[:5]
    return [other for _, other in near]


async def _read_text(state: ToolState, path: str, size: int, reader: PageReader) -> CallOutcome | None:
    """Feed the whole file to the reader, so its number of lines is exact. Return the refusal if the file is binary."""
    position = 0
    while True:
        chunk = await state.slot.files.read_bytes(path, offset=position, length=_CHUNK_BYTES, limit_bytes=_CHUNK_BYTES)
        if position == 0:
            refusal = _refuse_binary(path, chunk, size)
            if refusal is not None:
                return refusal
        position += len(chunk)
        if len(chunk) > _LARGE_BYTES:
            await anyio.to_thread.run_sync(reader.feed, chunk)
        else:
            reader.feed(chunk)
        if len(chunk) < _CHUNK_BYTES or position >= _MAX_BYTES:
            return None


def _refuse_binary(path: str, start: bytes, size: int) -> CallOutcome | None:
    if posixpath.splitext(path)[1].removeprefix(".").lower() in _IMAGES:
        message = "This is an image; read_file shows text only. Use a program in the terminal to examine it."
        data: dict[str, object] = {
            "content": "",
            "is_binary": True,
            "is_image": True,
            "file_size": size,
            "error": message,
            "error_kind": "is_image",
        }
        return CallOutcome(data, "is_image")
    if is_binary(start):
        message = (
            "This is a binary file and cannot be shown as text. Use a program in the terminal (file, xxd, "
            "strings) to examine it."
        )
        return CallOutcome(
            {"content": "", "is_binary": True, "file_size": size, "error": message, "error_kind": "is_binary"},
            "is_binary",
        )
    return None


async def _read_document(state: ToolState, path: str, size: int, reader: PageReader) -> None:
    if size > documents.MAX_DOCUMENT_BYTES:
        raise ToolFailure(
            "too_large", f"The document has {size:,} bytes; at most {documents.MAX_DOCUMENT_BYTES:,} are read."
        )
    data = await state.slot.files.read_bytes(path, limit_bytes=documents.MAX_DOCUMENT_BYTES + 1)
    try:
        text = await anyio.to_thread.run_sync(documents.extract, path, data)
    except documents.DocumentError as error:
        raise ToolFailure("bad_document", f"{error}. Use a program in the terminal to examine it.") from None
    reader.feed(text.encode("utf-8", "replace"))


def _repeat_outcome(path: str, repeats: int) -> CallOutcome:
    if repeats == 1:
        return CallOutcome(
            {"status": "unchanged", "message": _UNCHANGED, "path": path, "dedup": True, "content_returned": False}
        )
    message = (
        f"BLOCKED: You have called read_file on this exact region {repeats + 1} times and the file has NOT "
        "changed. The content from your earlier "
        "read_file result is still current. Proceed with your task using the information you already have."
    )
    return CallOutcome(
        {"error": message, "error_kind": "repeated", "path": path, "already_read": repeats + 1}, "repeated"
    )
