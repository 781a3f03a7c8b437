"""The V4A patch format: text to operations. Nothing is read or written here."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from hermes_exec.tools.patch.markers import (
    END_OF_FILE,
    HEADER,
    MOVE_TO,
    NO_NEWLINE,
    PatchLines,
    locate_patch,
    mismatch_failure,
    syntax_failure,
)

_RANGES = re.compile(r"-\d+(?:,\d+)? \+\d+(?:,\d+)?\s*(?:@@)?\s*")
_NO_BREAK_SPACE = "\u00a0"
_MAX_HINTS = 50


@dataclass(frozen=True)
class Hunk:
    """One change in a file: where to search (`hints`, outermost first), the expected lines, and their replacement.

    `loose_end` counts blank lines at the end of both sides that may be mere layout of the patch. `final_newline` says
    whether the last line of the file gets a line end, if the hunk changes that (None: it stays as it is).
    """

    hints: tuple[str, ...]
    old: tuple[str, ...]
    new: tuple[str, ...]
    line: int
    loose_end: int = 0
    at_end_of_file: bool = False
    final_newline: bool | None = None


@dataclass(frozen=True)
class UpdateFile:
    """Change an existing file, then move it if `move_to` is set."""

    path: str
    hunks: tuple[Hunk, ...]
    move_to: str | None = None


@dataclass(frozen=True)
class AddFile:
    """Create a file that does not exist yet."""

    path: str
    content: str


@dataclass(frozen=True)
class DeleteFile:
    """Remove a file."""

    path: str


@dataclass(frozen=True)
class MoveFile:
    """Move a file to a path that does not exist yet."""

    path: str
    target: str


Operation = UpdateFile | AddFile | DeleteFile | MoveFile


def parse(text: str) -> tuple[Operation, ...]:
    """Return the operations of a patch, in order.

    The first line may be missing. The last may not, because a patch without it was probably cut off. Markers may be
    written loosely, and a code fence or a here-document may enclose the patch.

    Raises:
        ToolFailure: `bad_patch`, with the line number.
    """
    patch = locate_patch(text)
    operations: list[Operation] = []
    index = patch.start
    while index < patch.end:
        if not patch.lines[index].strip():
            index += 1
            continue
        operation, index = _operation(patch, index)
        operations.append(operation)
    if not operations:
        raise syntax_failure(patch.start + 1, "the patch has no operation")
    return tuple(operations)


def _operation(patch: PatchLines, index: int) -> tuple[Operation, int]:
    lines = patch.lines
    header = HEADER.match(lines[index])
    if header is None:
        wanted = "'*** Update File: ', '*** Add File: ', '*** Delete File: ' or '*** Move File: src -> dst'"
        raise mismatch_failure(index + 1, f"expected {wanted}", lines[index])
    update, add, delete, move, path = header.groups()
    path = _path(path, patch.starred, index + 1)
    stop = next((at for at in range(index + 1, patch.end) if HEADER.match(lines[at])), patch.end)
    body = lines[index + 1 : stop]
    if update:
        return _update(path, body, index + 1, patch.starred), stop
    if add:
        return AddFile(path, _file_content(body, index + 1)), stop
    if any(line.strip() for line in body):
        raise syntax_failure(index + 2, f"'{(delete or move).capitalize()} File' takes no lines")
    if delete:
        return DeleteFile(path), stop
    source, *target = re.split(r"\s->\s", path, maxsplit=1)
    if not target or not source.strip() or not target[0].strip():
        raise syntax_failure(index + 1, "a move is written '*** Move File: src -> dst'")
    return MoveFile(source.strip(), target[0].strip()), stop


def _path(text: str, starred: bool, line: int) -> str:
    path = text.rstrip().rstrip("*").strip() if starred else text.strip()
    if not path:
        raise syntax_failure(line, "the path is missing")
    return path


def _file_content(body: list[str], line: int) -> str:
    content: list[str] = []
    blanks = 0
    end = "\n"
    for number, text in enumerate(body, line + 1):
        if not text:
            blanks += 1
        elif text.startswith("+"):
            content += [""] * blanks + [text[1:]]
            blanks = 0
        elif NO_NEWLINE.match(text):
            end = ""
        elif not text.startswith("@@") and not END_OF_FILE.match(text):
            raise mismatch_failure(number, "each line of an added file starts with '+'", text)
    return "\n".join(content) + end if content else ""


def _update(path: str, body: list[str], line: int, starred: bool) -> UpdateFile:
    move_to = None
    hunks: list[Hunk] = []
    hints: list[str] = []
    changes: list[str] = []
    hunk_line = line + 1
    for number, text in enumerate(body, line + 1):
        if text.startswith("@@"):
            if _has_change(changes):
                hunks.append(_hunk(hints, changes, hunk_line))
                hints = []
            changes, hunk_line = [], number
            hint = _hint(text)
            hints += [hint] if hint else []
            if len(hints) > _MAX_HINTS:
                raise syntax_failure(number, f"a hunk has more than {_MAX_HINTS} lines of '@@'")
        elif END_OF_FILE.match(text):
            hunks.append(_hunk(hints, changes, hunk_line, at_end=True))
            hints, changes = [], []
        elif move_to is None and (move := MOVE_TO.match(text)):
            move_to = _path(move[1], starred, number)
        elif NO_NEWLINE.match(text):
            changes += ["\\"] if changes else []
        elif text and text[0] not in " +-" + _NO_BREAK_SPACE:
            raise mismatch_failure(number, "a line of a hunk starts with a space, '-' or '+'", text)
        else:
            changes.append(text)
    if _has_change(changes):
        hunks.append(_hunk(hints, changes, hunk_line))
    elif any(text.strip() for text in changes):
        raise syntax_failure(hunk_line, "the hunk has neither '-' nor '+' lines")
    if not hunks and move_to is None:
        raise syntax_failure(line, f"the update of {path} has no change")
    return UpdateFile(path, tuple(hunks), move_to)


def _has_change(changes: list[str]) -> bool:
    return any(text[:1] in ("+", "-") for text in changes)


def _hint(text: str) -> str:
    hint = text[2:].strip()
    hint = hint[:-2].rstrip() if hint.endswith("@@") else hint
    return _RANGES.sub("", hint, count=1) if _RANGES.match(hint) else hint


def _hunk(hints: list[str], changes: list[str], line: int, *, at_end: bool = False) -> Hunk:
    if not _has_change(changes):
        raise syntax_failure(line, "the hunk has neither '-' nor '+' lines")
    final_newline = _final_newline(changes)
    changes = [text for text in changes if text != "\\"]
    loose = 0
    while changes[len(changes) - 1 - loose] == "":
        loose += 1
    old = tuple(text[1:] for text in changes if text[:1] != "+")
    new = tuple(text[1:] for text in changes if text[:1] != "-")
    return Hunk(tuple(hints), old, new, line, loose, at_end, final_newline)


def _final_newline(changes: list[str]) -> bool | None:
    """Return whether the hunk adds (True) or removes (False) the line end of the file's last line, else None."""
    unended = {before[:1] for before, text in itertools.pairwise(changes) if text == "\\"}
    return None if unended not in ({"-"}, {"+"}) else unended == {"-"}
