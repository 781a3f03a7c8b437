"""Execution of a plan of file changes as a whole: if one step fails, the earlier ones are undone."""

from __future__ import annotations

import posixpath
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from hermes_exec.errors import ExecError
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.os_errors import os_failure

if TYPE_CHECKING:
    from hermes_exec.slot.slot import Slot

_ROLLBACK_S = 10.0


@dataclass(frozen=True)
class Write:
    """Write a file's new content; `before` is None for a new file."""

    path: str
    display_path: str
    content: bytes
    before: bytes | None


@dataclass(frozen=True)
class Delete:
    """Remove a file."""

    path: str
    display_path: str


@dataclass(frozen=True)
class Move:
    """Move a file to another path."""

    path: str
    target: str
    display_path: str


Step = Write | Delete | Move


@dataclass(frozen=True)
class FileChange:
    """A file before and after the whole plan (None: it does not exist).

    For a file that was moved here, `moved_from` and `moved_content` are its earlier path and content. `moved_away` is
    True for the path that a file was moved from.
    """

    path: str
    display_path: str
    before: bytes | None
    after: bytes | None
    moved_from: str | None = None
    moved_content: bytes | None = None
    moved_away: bool = False


@dataclass(frozen=True)
class PatchPlan:
    """The steps in order, the resulting changes, and the strategies that matched the hunks of each file."""

    steps: tuple[Step, ...]
    changes: tuple[FileChange, ...]
    strategies: dict[str, list[str]]


Undo = Write | tuple[str, str] | str
"""How to undo a step: write the old content, move from the first path to the second, or remove the path."""


async def commit(slot: Slot, plan: PatchPlan) -> None:
    """Execute all steps. On failure or cancellation, the steps so far are undone.

    Raises:
        ToolFailure: If a step is refused. The message lists files that could not be restored.
    """
    undo: list[Undo] = []
    set_aside: list[str] = []
    directories: list[str] = []
    for step in plan.steps:
        try:
            await _apply_step(slot, step, undo, set_aside, directories)
        except OSError as error:
            if isinstance(error, ExecError):
                raise
            failed_paths = await _roll_back(slot, undo, directories)
            failure = os_failure(step.display_path, error)
            result_note = (
                " Nothing was changed."
                if not failed_paths
                else f" These could not be restored and are changed: {', '.join(failed_paths)}."
            )
            raise ToolFailure(failure.kind, failure.message + result_note) from None
        except BaseException:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_ROLLBACK_S):
                await _roll_back(slot, undo, directories)
            raise
    for path in set_aside:
        await slot.files.remove(path)


async def _apply_step(slot: Slot, step: Step, undo: list[Undo], set_aside: list[str], directories: list[str]) -> None:
    if isinstance(step, Write):
        if step.before is None:
            directories += await _make_directories(slot, step.path)
            undo.append(step.path)
        else:
            undo.append(step)
        await slot.files.write_bytes(step.path, step.content)
    elif isinstance(step, Move):
        directories += await _make_directories(slot, step.target)
        await slot.files.move(step.path, step.target, overwrite=False)
        undo.append((step.target, step.path))
    else:
        aside = posixpath.join(
            posixpath.dirname(step.path), f".{posixpath.basename(step.path)[:100]}.{secrets.token_hex(6)}.deleted"
        )
        await slot.files.move(step.path, aside, overwrite=False)
        undo.append((aside, step.path))
        set_aside.append(aside)


async def _make_directories(slot: Slot, path: str) -> list[str]:
    """Create the missing directories above `path` and return them, outermost first."""
    missing: list[str] = []
    directory = posixpath.dirname(path)
    while directory not in ("", "/") and not await slot.files.exists(directory):
        missing.append(directory)
        directory = posixpath.dirname(directory)
    directories = missing[::-1]
    if directories:
        await slot.files.mkdir(directories[-1], parents=True)
    return directories


async def _roll_back(slot: Slot, undo: list[Undo], directories: list[str]) -> list[str]:
    """Undo the steps, the last first. Return the paths that could not be restored."""
    failed_paths: list[str] = []
    for item in reversed(undo):
        path = item if isinstance(item, str) else item.path if isinstance(item, Write) else item[1]
        try:
            if isinstance(item, Write):
                before = item.before or b""
                if await slot.files.read_bytes(item.path) != before:  # the failed step may have changed nothing
                    await slot.files.write_bytes(item.path, before)
            elif isinstance(item, tuple):
                await slot.files.move(*item)
            elif await slot.files.exists(item):
                await slot.files.remove(item)
        except OSError as error:
            if isinstance(error, ExecError):
                raise
            failed_paths.append(path)
    for directory in reversed(directories):
        try:
            await slot.files.remove(directory)
        except OSError as error:
            if isinstance(error, ExecError):
                raise
    return failed_paths
