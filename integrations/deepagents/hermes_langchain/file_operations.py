"""The file operations of deepagents on a slot. Errors of the slot's system become the texts that deepagents expects."""

from __future__ import annotations

import base64
import datetime as dt

from deepagents.backends.protocol import (
    DeleteResult,
    EditResult,
    FileData,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.utils import EMPTY_OLD_STRING_ERROR, slice_read_response

from hermes_exec import ConfigError, OutputLimitExceeded, Slot

READ_LIMIT_BYTES = 16 << 20
PREVIEW_LIMIT_BYTES = 512_000
DOWNLOAD_LIMIT_BYTES = 1 << 30
EMPTY_FILE = "System reminder: File exists but has empty contents"
CODES: dict[type[Exception], str] = {
    ConfigError: "invalid_path",
    FileNotFoundError: "file_not_found",
    NotADirectoryError: "file_not_found",
    IsADirectoryError: "is_directory",
    PermissionError: "permission_denied",
}


def explain_error(error: OSError | ConfigError) -> str:
    """Return deepagents' code for an error, or its own text. A ConfigError is that of a path which no file can have."""
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), str(error))


def validate_path(path: str) -> str | None:
    """Return the error of a path that is not absolute or has a NUL character; None for a good one."""
    return None if path.startswith("/") and "\0" not in path else "invalid_path"


async def list_directory(slot: Slot, path: str) -> LsResult:
    """List the entries of a directory."""
    try:
        entries = await slot.files.list(path)
    except (OSError, ConfigError) as error:
        code = explain_error(error)
        return LsResult(error=f"Path '{path}': {'path_not_found' if code == 'file_not_found' else code}")
    infos: list[FileInfo] = []
    for entry in entries:
        modified = dt.datetime.fromtimestamp(entry.mtime, dt.UTC).isoformat()
        infos.append(
            {
                "path": f"{path.rstrip('/')}/{entry.name}",
                "is_dir": entry.type == "dir",
                "size": entry.size,
                "modified_at": modified,
            }
        )
    return LsResult(entries=infos)


async def read(slot: Slot, path: str, offset: int, limit: int) -> ReadResult:
    """Read lines of a text file, or a whole small binary file as base64."""
    try:
        data = await slot.files.read_bytes(path, limit_bytes=READ_LIMIT_BYTES)
    except OutputLimitExceeded:
        return ReadResult(error=f"File '{path}': larger than {READ_LIMIT_BYTES} bytes; read parts of it by a command")
    except (OSError, ConfigError) as error:
        return ReadResult(error=f"File '{path}': {explain_error(error)}")
    if not data:
        return ReadResult(file_data=FileData(content=EMPTY_FILE, encoding="utf-8"))
    try:
        text = None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None:
        return _read_lines(path, text, offset, limit)
    if len(data) > PREVIEW_LIMIT_BYTES:
        return ReadResult(
            error=f"File '{path}': Binary file exceeds maximum preview size of {PREVIEW_LIMIT_BYTES} bytes"
        )
    return ReadResult(file_data=FileData(content=base64.b64encode(data).decode(), encoding="base64"))


def _read_lines(path: str, text: str, offset: int, limit: int) -> ReadResult:
    """Return lines of a text; the last line of a page that more lines follow has no line end."""
    result: ReadResult = slice_read_response(FileData(content=text, encoding="utf-8"), offset, limit)
    if result.error:
        return ReadResult(error=f"File '{path}': {result.error}")
    if result.file_data and result.next_offset is not None:
        result.file_data["content"] = result.file_data["content"].removesuffix("\n")
    return result


async def write(slot: Slot, path: str, content: str) -> WriteResult:
    """Write a text file."""
    if error := await _write(slot, path, content):
        return WriteResult(error=f"Failed to write file '{path}': {error}")
    return WriteResult(path=path)


async def edit(slot: Slot, path: str, old: str, new: str, replace_all: bool) -> EditResult:
    """Replace a text, as it is or in the line ends that the file has."""
    if not old:
        return EditResult(error=EMPTY_OLD_STRING_ERROR)
    try:
        text = (await slot.files.read_bytes(path, limit_bytes=READ_LIMIT_BYTES)).decode()
    except UnicodeDecodeError:
        return EditResult(error=f"Error: File '{path}' is not a text file")
    except OutputLimitExceeded:
        return EditResult(error=f"Error: File '{path}' is larger than {READ_LIMIT_BYTES} bytes")
    except (OSError, ConfigError) as error:
        code = explain_error(error)
        reason = f"File '{path}' not found" if code == "file_not_found" else f"editing file '{path}': {code}"
        return EditResult(error=f"Error: {reason}")
    lf = [part.replace("\r\n", "\n") for part in (old, new)]
    forms = [(old, new), tuple(part.replace("\n", "\r\n") for part in lf), tuple(lf)]
    old, new = next((form for form in forms if form[0] in text), (old, new))
    count = text.count(old)
    if count == 0:
        return EditResult(error=f"Error: String not found in file: '{old}'")
    if count > 1 and not replace_all:
        return EditResult(
            error=f"Error: String '{old}' appears multiple times. Use replace_all=True to replace all occurrences."
        )
    if error_text := await _write(slot, path, text.replace(old, new)):
        return EditResult(error=f"Error editing file '{path}': {error_text}")
    return EditResult(path=path, occurrences=count)


async def delete(slot: Slot, path: str) -> DeleteResult:
    """Remove a file, or a directory with its contents."""
    try:
        await slot.files.remove(path, recursive=True)
    except FileNotFoundError:
        return DeleteResult(error=f"Error: '{path}' not found")
    except (OSError, ConfigError) as error:
        return DeleteResult(error=f"Error deleting file '{path}': {explain_error(error)}")
    return DeleteResult(path=path)


async def upload(slot: Slot, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
    """Write files; each response has its own error."""
    return [FileUploadResponse(path, await _write(slot, path, data)) for path, data in files]


async def download(slot: Slot, paths: list[str]) -> list[FileDownloadResponse]:
    """Read files; each response has its own error."""
    return [await _download(slot, path) for path in paths]


async def _download(slot: Slot, path: str) -> FileDownloadResponse:
    if error := validate_path(path):
        return FileDownloadResponse(path, None, error)
    try:
        return FileDownloadResponse(path, await slot.files.read_bytes(path, limit_bytes=DOWNLOAD_LIMIT_BYTES))
    except (OSError, ConfigError) as problem:
        return FileDownloadResponse(path, None, explain_error(problem))
    except OutputLimitExceeded as problem:
        return FileDownloadResponse(path, None, str(problem))


async def _write(slot: Slot, path: str, data: str | bytes) -> str | None:
    if error := validate_path(path):
        return error
    try:
        await slot.files.write_bytes(path, data.encode() if isinstance(data, str) else data)
    except UnicodeEncodeError as problem:
        return f"the text is not UTF-8: {problem.reason} at {problem.start}"
    except (OSError, ConfigError) as problem:
        return explain_error(problem)
    return None
