"""The sandbox of deepagents whose commands and files are those of a slot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from deepagents.backends.protocol import (
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.sandbox import BaseSandbox

import hermes_exec
from hermes_exec import blocking
from hermes_langchain import file_operations, search_operations

T = TypeVar("T")
TIMEOUT_S = 1800
OUTPUT_LIMIT_BYTES = 4 << 20
TIMEOUT_EXIT_CODE = 124


class HermesSandbox(BaseSandbox):
    """A slot as the backend of a deep agent. It is the holder of the slot who releases it.

    No operation needs a program in the image, except that commands need a shell. Paths of files are absolute.

    Args:
        slot: A slot in the blocking form (`with SandboxPool(...)`), which serves both forms of the agent (`invoke` and
            `ainvoke`), or in the async form, which serves `ainvoke` in its own event loop.
        timeout_s: Longest time of a command for which the agent states none, in seconds; 0 for no bound.

    A lost slot raises `hermes_exec.ExecError`; it is never the result of an operation.
    """

    def __init__(self, slot: blocking.Slot | hermes_exec.Slot, *, timeout_s: int = TIMEOUT_S) -> None:
        if not isinstance(slot, blocking.Slot | hermes_exec.Slot):
            raise hermes_exec.ConfigError(f"slot must be a slot of a SandboxPool, not {type(slot).__name__}")
        self._blocking = slot if isinstance(slot, blocking.Slot) else None
        self._slot = slot.wrapped if isinstance(slot, blocking.Slot) else slot
        if not timeout_s >= 0:
            raise hermes_exec.ConfigError(f"timeout_s must be seconds, or 0 for no bound, not {timeout_s!r}")
        self._timeout_s = timeout_s

    @property
    def id(self) -> str:
        """The id of the slot."""
        return self._slot.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell command and return both streams in order. A timeout in seconds has the exit code 124."""
        return self._run(lambda: self._execute(command, timeout))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command as `execute`."""
        return await self._await(lambda: self._execute(command, timeout))

    def ls(self, path: str) -> LsResult:
        """List a directory, without what is below its directories."""
        return self._run(lambda: file_operations.list_directory(self._slot, path))

    async def als(self, path: str) -> LsResult:
        """List a directory as `ls`."""
        return await self._await(lambda: file_operations.list_directory(self._slot, path))

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read lines of a text file, or a whole binary file of at most 512,000 bytes as base64."""
        return self._run(lambda: file_operations.read(self._slot, file_path, offset, limit))

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read a file as `read`."""
        return await self._await(lambda: file_operations.read(self._slot, file_path, offset, limit))

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a file with its missing directories; an existing one is replaced atomically."""
        return self._run(lambda: file_operations.write(self._slot, file_path, content))

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Write a file as `write`."""
        return await self._await(lambda: file_operations.write(self._slot, file_path, content))

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        """Replace a text in a file, whose line ends stay as they are."""
        return self._run(lambda: file_operations.edit(self._slot, file_path, old_string, new_string, replace_all))

    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        """Replace a text as `edit`."""
        return await self._await(
            lambda: file_operations.edit(self._slot, file_path, old_string, new_string, replace_all)
        )

    def delete(self, file_path: str) -> DeleteResult:
        """Remove a file, or a directory with its contents."""
        return self._run(lambda: file_operations.delete(self._slot, file_path))

    async def adelete(self, file_path: str) -> DeleteResult:
        """Remove a file as `delete`."""
        return await self._await(lambda: file_operations.delete(self._slot, file_path))

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines that contain a text, in the files that match `glob`."""
        return self._run(lambda: self._grep(pattern, path, glob, max_count))

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find lines as `grep`."""
        return await self._await(lambda: self._grep(pattern, path, glob, max_count))

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name."""
        return self._run(lambda: search_operations.glob(self._slot, pattern, path))

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files as `glob`."""
        return await self._await(lambda: search_operations.glob(self._slot, pattern, path))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files and return a response for each, in order."""
        return self._run(lambda: file_operations.upload(self._slot, files))

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files as `upload_files`."""
        return await self._await(lambda: file_operations.upload(self._slot, files))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files and return a response for each, in order."""
        return self._run(lambda: file_operations.download(self._slot, paths))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files as `download_files`."""
        return await self._await(lambda: file_operations.download(self._slot, paths))

    async def _execute(self, command: str, timeout_s: int | None) -> ExecuteResponse:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        result = await self._slot.run(
            command, timeout_s=limit_s or None, merge_stderr=True, output_limit_bytes=OUTPUT_LIMIT_BYTES
        )
        if not result.timed_out:
            return ExecuteResponse(result.output, result.exit_code, result.truncated)
        note = f"[the command timed out after {limit_s:g} seconds]"
        output = f"{result.output.rstrip()}\n{note}" if result.output.strip() else note
        return ExecuteResponse(output, TIMEOUT_EXIT_CODE, result.truncated)

    async def _grep(self, pattern: str, path: str | None, glob: str | None, max_count: int | None) -> GrepResult:
        return await search_operations.grep(self._slot, pattern, path, glob, max_count, self.grep_exclude_dirs)

    def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        if self._blocking is None:
            raise RuntimeError(
                "this slot is in the async form: use the async methods of the agent (`ainvoke`), or take a slot from a "
                "pool that plain `with` has entered"
            )
        return self._blocking.run_async(work)

    async def _await(self, work: Callable[[], Awaitable[T]]) -> T:
        if self._blocking is None:
            return await work()
        return await asyncio.wrap_future(self._blocking.portal.start_task_soon(work))
