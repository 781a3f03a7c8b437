"""The write_file tool: writes a whole file, keeping the line ends and byte order mark of the old one."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any

from hermes_exec.tools.call.os_errors import translate_os_errors
from hermes_exec.tools.call.results import CallOutcome
from hermes_exec.tools.files.lint import lint
from hermes_exec.tools.state.file_views import fingerprint_of
from hermes_exec.tools.state.tool_state import ToolState

if TYPE_CHECKING:
    from hermes_exec.slot.slot import Slot

STALE_WARNING = (
    "The file was changed by someone else since you last read it; this write replaced that change. Read it "
    "again if you did not mean that."
)
_HEAD_BYTES = 4 << 20


async def write_file(state: ToolState, arguments: dict[str, Any]) -> CallOutcome:
    """Write `content` to `path`, atomically, with the slot's rights."""
    display_path, content = arguments["path"], arguments["content"]
    path = state.resolve(display_path)
    async with state.write_lock:
        with translate_os_errors(display_path):
            old = await _read_old(state.slot, path)
            data = _encode(content, old)
            written = await state.slot.files.write_bytes(path, data)
    stale = old is not None and len(old) < _HEAD_BYTES and state.views.has_changed(path, fingerprint_of(old))
    state.views.record(path, fingerprint_of(data))
    result: dict[str, object] = {"bytes_written": len(data), "dirs_created": bool(written.dirs_created)}
    note = await lint(path, content)
    if note is not None:
        result["lint"] = note
    result |= {"resolved_path": path, "files_modified": [path]}
    if stale:
        result["_warning"] = STALE_WARNING
    return CallOutcome(result)


async def _read_old(slot: Slot, path: str) -> bytes | None:
    """Read the beginning of the existing file, or return None if there is none."""
    try:
        return await slot.files.read_bytes(path, length=_HEAD_BYTES, limit_bytes=_HEAD_BYTES)
    except FileNotFoundError:
        return None


def _encode(content: str, old: bytes | None) -> bytes:
    data = content.encode("utf-8")
    if old is None:
        return data
    if _uses_crlf(old) and b"\r\n" not in data:
        data = data.replace(b"\n", b"\r\n")
    if old.startswith(codecs.BOM_UTF8) and not data.startswith(codecs.BOM_UTF8):
        data = codecs.BOM_UTF8 + data
    return data


def _uses_crlf(old: bytes) -> bool:
    crlf = old.count(b"\r\n")
    return crlf > 0 and crlf == old.count(b"\n") and b"\0" not in old
