"""From V4A operations to one plan: everything is read and validated here, nothing is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import anyio.to_thread

from hermes_exec.errors import OutputLimitExceeded
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.os_errors import explained
from hermes_exec.tools.files.read_file import similar_files
from hermes_exec.tools.files.textfile import TextFile, decode
from hermes_exec.tools.patch.commit import Change, Delete, Move, Plan, Step, Write
from hermes_exec.tools.patch.hunks import apply_hunks
from hermes_exec.tools.patch.v4a import AddFile, DeleteFile, MoveFile, Operation, UpdateFile
from hermes_exec.tools.state.tool_state import ToolState

if TYPE_CHECKING:
    from hermes_exec.slot.slot import Slot

MAX_FILE_BYTES = 16 << 20
MAX_FILE_LINES = 500_000
_MAX_PATCH_BYTES = 64 << 20


async def read_existing(state: ToolState, path: str, shown: str) -> bytes:
    """The content of a file that must be there. Raises ToolFailure, with similar paths when it is not."""
    try:
        with explained(shown):
            return await state.slot.files.read_bytes(path, limit_bytes=MAX_FILE_BYTES)
    except OutputLimitExceeded:
        raise _too_large(f"{shown} is larger than {MAX_FILE_BYTES >> 20} MiB") from None
    except ToolFailure as failure:
        if failure.kind == "not_found":
            similar = await similar_files(state, path)
            if similar:
                failure.fields["similar_files"] = similar
        raise


def as_text(data: bytes, shown: str) -> TextFile:
    """The content as text. Raises ToolFailure for a binary file."""
    file = decode(data)
    if file is None:
        raise ToolFailure("is_binary", f"{shown} is a binary file; edit it with a program in the terminal.")
    if data.count(b"\n") > MAX_FILE_LINES:
        raise _too_large(f"{shown} has more than {MAX_FILE_LINES:,} lines")
    return file


def _too_large(what: str) -> ToolFailure:
    return ToolFailure("too_large", f"{what}; edit it with a program in the terminal.")


async def _is_there(slot: Slot, path: str) -> bool:
    """True for anything of that name, a broken link included."""
    try:
        await slot.files.stat(path, follow=False)
    except FileNotFoundError:
        return False
    return True


class _Entry(NamedTuple):
    shown: str
    content: bytes | None


class _Sketch:
    """The files as they will be, on top of the files as they are."""

    def __init__(self, state: ToolState) -> None:
        self.state = state
        self.original: dict[str, bytes | None] = {}
        self.now: dict[str, _Entry] = {}
        self.source: dict[str, _Entry] = {}
        self.moved_away: set[str] = set()
        self.steps: list[Step] = []
        self.left = _MAX_PATCH_BYTES
        self.strategies: dict[str, list[str]] = {}

    async def existing(self, shown: str) -> tuple[str, bytes]:
        path = self.state.resolve(shown)
        if path not in self.now:
            content = await read_existing(self.state, path, shown)
            self.left -= len(content)
            if self.left < 0:
                raise _too_large(f"The files of the patch are larger than {_MAX_PATCH_BYTES >> 20} MiB together")
            self.original[path] = content
            self.now[path] = _Entry(shown, content)
        current = self.now[path].content
        if current is None:
            raise ToolFailure("not_found", f"{shown} was deleted or moved by an operation before this one.")
        return path, current

    async def absent(self, shown: str, verb: str) -> str:
        path = self.state.resolve(shown)
        if path in self.now:
            there = self.now[path].content is not None
        else:
            with explained(shown):
                there = await _is_there(self.state.slot, path)
            self.original[path] = None
        if there:
            raise ToolFailure(
                "exists", f"{shown} exists already; {verb} never overwrites. Use '*** Update File' or delete it first."
            )
        return path

    def write(self, shown: str, path: str, content: bytes) -> None:
        before = self.now[path].content if path in self.now else None
        self.steps.append(Write(path, shown, content, before))
        self.now[path] = _Entry(shown, content)

    async def move(self, shown: str, target_shown: str) -> None:
        path, content = await self.existing(shown)
        target = await self.absent(target_shown, "a move")
        self.steps.append(Move(path, target, shown))
        self.source[target] = self.source.pop(path, _Entry(shown, self.original.get(path)))
        self.moved_away.add(path)
        self.now[path] = _Entry(shown, None)
        self.now[target] = _Entry(target_shown, content)


async def make_plan(state: ToolState, operations: Iterable[Operation]) -> Plan:
    """Return the steps and the resulting changes. Raises ToolFailure when one operation cannot be done; then nothing
    is done.
    """
    sketch = _Sketch(state)
    for operation in operations:
        if isinstance(operation, AddFile):
            path = await sketch.absent(operation.path, "Add File")
            sketch.write(operation.path, path, operation.content.encode("utf-8"))
        elif isinstance(operation, DeleteFile):
            path, _content = await sketch.existing(operation.path)
            sketch.steps.append(Delete(path, operation.path))
            sketch.now[path] = _Entry(operation.path, None)
        elif isinstance(operation, MoveFile):
            await sketch.move(operation.path, operation.target)
        else:
            await _update(sketch, operation)
    changes = [
        _change(sketch, path, entry) for path, entry in sketch.now.items() if sketch.original.get(path) != entry.content
    ]
    return Plan(tuple(sketch.steps), tuple(changes), sketch.strategies)


def _change(sketch: _Sketch, path: str, entry: _Entry) -> Change:
    source = sketch.source.get(path)
    return Change(
        path,
        entry.shown,
        sketch.original.get(path),
        entry.content,
        moved_from=source.shown if source is not None else None,
        moved_content=source.content if source is not None else None,
        moved_away=path in sketch.moved_away,
    )


async def _update(sketch: _Sketch, operation: UpdateFile) -> None:
    path, content = await sketch.existing(operation.path)
    if operation.hunks:
        file = as_text(content, operation.path)
        similar = sketch.state.options.similarity_patch
        after, strategies = await anyio.to_thread.run_sync(
            lambda: apply_hunks(file, operation.hunks, operation.path, similar=similar)
        )
        if after == content:
            raise ToolFailure("no_change", f"The hunks leave {operation.path} as it is.")
        sketch.write(operation.path, path, after)
        sketch.strategies.setdefault(operation.path, []).extend(strategies)
    if operation.move_to is not None:
        await sketch.move(operation.path, operation.move_to)
