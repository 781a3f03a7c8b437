"""Planning of V4A operations: everything is read and validated here, nothing is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import anyio.to_thread

from hermes_exec.errors import OutputLimitExceeded
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.os_errors import translate_os_errors
from hermes_exec.tools.files.read_file import similar_files
from hermes_exec.tools.files.textfile import TextFile, decode
from hermes_exec.tools.patch.commit import Delete, FileChange, Move, PatchPlan, Step, Write
from hermes_exec.tools.patch.hunks import apply_hunks
from hermes_exec.tools.patch.v4a import AddFile, DeleteFile, MoveFile, Operation, UpdateFile
from hermes_exec.tools.state.tool_state import ToolState

if TYPE_CHECKING:
    from hermes_exec.slot.slot import Slot

MAX_FILE_BYTES = 16 << 20
MAX_FILE_LINES = 500_000
_MAX_PATCH_BYTES = 64 << 20


async def read_existing(state: ToolState, path: str, display_path: str) -> bytes:
    """Return the content of a file that must exist.

    Raises:
        ToolFailure: If the file does not exist (with similar paths), is too large, or cannot be read.
    """
    try:
        with translate_os_errors(display_path):
            return await state.slot.files.read_bytes(path, limit_bytes=MAX_FILE_BYTES)
    except OutputLimitExceeded:
        raise _too_large(f"{display_path} is larger than {MAX_FILE_BYTES >> 20} MiB") from None
    except ToolFailure as failure:
        if failure.kind == "not_found":
            similar = await similar_files(state, path)
            if similar:
                failure.fields["similar_files"] = similar
        raise


def decode_text(data: bytes, display_path: str) -> TextFile:
    """Return the content as text.

    Raises:
        ToolFailure: If the file is binary or has too many lines.
    """
    file = decode(data)
    if file is None:
        raise ToolFailure("is_binary", f"{display_path} is a binary file; edit it with a program in the terminal.")
    if data.count(b"\n") > MAX_FILE_LINES:
        raise _too_large(f"{display_path} has more than {MAX_FILE_LINES:,} lines")
    return file


def _too_large(reason: str) -> ToolFailure:
    return ToolFailure("too_large", f"{reason}; edit it with a program in the terminal.")


async def _exists(slot: Slot, path: str) -> bool:
    """Return whether anything has that name, including a broken link."""
    try:
        await slot.files.stat(path, follow=False)
    except FileNotFoundError:
        return False
    return True


class _FileState(NamedTuple):
    display_path: str
    content: bytes | None


class _Draft:
    """The files as the operations so far leave them, on top of the files in the slot."""

    def __init__(self, state: ToolState) -> None:
        self.state = state
        self.original: dict[str, bytes | None] = {}
        self.current: dict[str, _FileState] = {}
        self.source: dict[str, _FileState] = {}
        self.moved_away: set[str] = set()
        self.steps: list[Step] = []
        self.remaining_bytes = _MAX_PATCH_BYTES
        self.strategies: dict[str, list[str]] = {}

    async def read(self, display_path: str) -> tuple[str, bytes]:
        path = self.state.resolve(display_path)
        if path not in self.current:
            content = await read_existing(self.state, path, display_path)
            self.remaining_bytes -= len(content)
            if self.remaining_bytes < 0:
                raise _too_large(f"The files of the patch are larger than {_MAX_PATCH_BYTES >> 20} MiB together")
            self.original[path] = content
            self.current[path] = _FileState(display_path, content)
        current = self.current[path].content
        if current is None:
            raise ToolFailure("not_found", f"{display_path} was deleted or moved by an operation before this one.")
        return path, current

    async def require_absent(self, display_path: str, verb: str) -> str:
        path = self.state.resolve(display_path)
        if path in self.current:
            exists = self.current[path].content is not None
        else:
            with translate_os_errors(display_path):
                exists = await _exists(self.state.slot, path)
            self.original[path] = None
        if exists:
            raise ToolFailure(
                "exists",
                f"{display_path} exists already; {verb} never overwrites. Use '*** Update File' or delete it first.",
            )
        return path

    def write(self, display_path: str, path: str, content: bytes) -> None:
        before = self.current[path].content if path in self.current else None
        self.steps.append(Write(path, display_path, content, before))
        self.current[path] = _FileState(display_path, content)

    async def move(self, display_path: str, target_display_path: str) -> None:
        path, content = await self.read(display_path)
        target = await self.require_absent(target_display_path, "a move")
        self.steps.append(Move(path, target, display_path))
        self.source[target] = self.source.pop(path, _FileState(display_path, self.original.get(path)))
        self.moved_away.add(path)
        self.current[path] = _FileState(display_path, None)
        self.current[target] = _FileState(target_display_path, content)


async def make_plan(state: ToolState, operations: Iterable[Operation]) -> PatchPlan:
    """Return the plan for the operations. Nothing is written.

    Raises:
        ToolFailure: If an operation is not possible.
    """
    draft = _Draft(state)
    for operation in operations:
        if isinstance(operation, AddFile):
            path = await draft.require_absent(operation.path, "Add File")
            draft.write(operation.path, path, operation.content.encode("utf-8"))
        elif isinstance(operation, DeleteFile):
            path, _content = await draft.read(operation.path)
            draft.steps.append(Delete(path, operation.path))
            draft.current[path] = _FileState(operation.path, None)
        elif isinstance(operation, MoveFile):
            await draft.move(operation.path, operation.target)
        else:
            await _update(draft, operation)
    changes = [
        _change(draft, path, entry)
        for path, entry in draft.current.items()
        if draft.original.get(path) != entry.content
    ]
    return PatchPlan(tuple(draft.steps), tuple(changes), draft.strategies)


def _change(draft: _Draft, path: str, entry: _FileState) -> FileChange:
    source = draft.source.get(path)
    return FileChange(
        path,
        entry.display_path,
        draft.original.get(path),
        entry.content,
        moved_from=source.display_path if source is not None else None,
        moved_content=source.content if source is not None else None,
        moved_away=path in draft.moved_away,
    )


async def _update(draft: _Draft, operation: UpdateFile) -> None:
    path, content = await draft.read(operation.path)
    if operation.hunks:
        file = decode_text(content, operation.path)
        similar = draft.state.options.similarity_patch
        after, strategies = await anyio.to_thread.run_sync(
            lambda: apply_hunks(file, operation.hunks, operation.path, similar=similar)
        )
        if after == content:
            raise ToolFailure("no_change", f"The hunks leave {operation.path} as it is.")
        draft.write(operation.path, path, after)
        draft.strategies.setdefault(operation.path, []).extend(strategies)
    if operation.move_to is not None:
        await draft.move(operation.path, operation.move_to)
