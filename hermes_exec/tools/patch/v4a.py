"""The V4A patch format: text to operations. Nothing is read or written here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hermes_exec.tools.call.failure import ToolFailure

BEGIN, END = "*** Begin Patch", "*** End Patch"
_HEADER = re.compile(r"\*\*\* (Update|Add|Delete|Move) File:(.*)\Z")
_MOVE_TO = re.compile(r"\*\*\* Move to:(.*)\Z")
_RANGES = re.compile(r"-\d+(?:,\d+)? \+\d+(?:,\d+)?\s*(?:@@)?\s*")
_MAX_HINTS = 50
_EXAMPLE = (
    "*** Begin Patch\n*** Update File: path/to/file\n@@ def name @@\n context\n-old line\n+new line\n*** End Patch"
)


@dataclass(frozen=True)
class Hunk:
    """One change in a file: where to search (`hints`, outermost first), the expected lines, and their replacement.

    `loose_end` counts blank lines at the end of both sides that may be mere layout of the patch.
    """

    hints: tuple[str, ...]
    old: tuple[str, ...]
    new: tuple[str, ...]
    line: int
    loose_end: int = 0
    at_end_of_file: bool = False


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

    The first line may be missing. The last may not, because a patch without it was probably cut off.

    Raises:
        ToolFailure: `bad_patch`, with the line number.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    first = next((index for index, line in enumerate(lines) if line.strip()), len(lines))
    start = first + 1 if first < len(lines) and lines[first].strip() == BEGIN else first
    ends = [index for index, line in enumerate(lines) if line.rstrip() == END]
    if not ends:
        raise _syntax_failure(len(lines), f"the patch has no last line '{END}' (was it cut off?)")
    if any(line.strip() for line in lines[ends[0] + 1 :]):
        raise _syntax_failure(ends[0] + 2, f"there is text after '{END}'; send one patch a call")
    operations: list[Operation] = []
    index = start
    while index < ends[0]:
        if not lines[index].strip():
            index += 1
            continue
        operation, index = _operation(lines, index, ends[0])
        operations.append(operation)
    if not operations:
        raise _syntax_failure(start + 1, "the patch has no operation")
    return tuple(operations)


def _operation(lines: list[str], index: int, end: int) -> tuple[Operation, int]:
    header = _HEADER.match(lines[index])
    if header is None:
        wanted = "'*** Update File: ', '*** Add File: ', '*** Delete File: ' or '*** Move File: src -> dst'"
        raise _syntax_failure(index + 1, f"expected {wanted}, found {lines[index][:60]!r}")
    verb, path = header[1], header[2].strip()
    if not path:
        raise _syntax_failure(index + 1, "the path is missing")
    stop = next((at for at in range(index + 1, end) if _HEADER.match(lines[at])), end)
    body = lines[index + 1 : stop]
    if verb == "Update":
        return _update(path, body, index + 1), stop
    if verb == "Add":
        return AddFile(path, _file_content(body, index + 1)), stop
    if any(line.strip() for line in body):
        raise _syntax_failure(index + 2, f"'{verb} File' takes no lines")
    if verb == "Delete":
        return DeleteFile(path), stop
    source, arrow, target = path.partition(" -> ")
    if not arrow or not source.strip() or not target.strip():
        raise _syntax_failure(index + 1, "a move is written '*** Move File: src -> dst'")
    return MoveFile(source.strip(), target.strip()), stop


def _file_content(body: list[str], line: int) -> str:
    while body and not body[-1]:
        body.pop()
    for number, text in enumerate(body, line + 1):
        if text and not text.startswith("+"):
            raise _syntax_failure(number, "each line of an added file starts with '+'")
    return "".join(text[1:] + "\n" for text in body)


def _update(path: str, body: list[str], line: int) -> UpdateFile:
    move_to = None
    if body and (move := _MOVE_TO.match(body[0])):
        move_to, body, line = move.group(1).strip(), body[1:], line + 1
        if not move_to:
            raise _syntax_failure(line, "the path is missing")
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
                raise _syntax_failure(number, f"a hunk has more than {_MAX_HINTS} lines of '@@'")
        elif text.rstrip() == "*** End of File":
            hunks.append(_hunk(hints, changes, hunk_line, at_end=True))
            hints, changes = [], []
        elif text and text[0] not in " +-":
            raise _syntax_failure(number, f"a line of a hunk starts with a space, '-' or '+', found {text[:60]!r}")
        else:
            changes.append(text)
    if _has_change(changes):
        hunks.append(_hunk(hints, changes, hunk_line))
    elif any(text.strip() for text in changes):
        raise _syntax_failure(hunk_line, "the hunk has neither '-' nor '+' lines")
    if not hunks and move_to is None:
        raise _syntax_failure(line, f"the update of {path} has no change")
    return UpdateFile(path, tuple(hunks), move_to)


def _has_change(changes: list[str]) -> bool:
    return any(text[:1] in ("+", "-") for text in changes)


def _hint(text: str) -> str:
    hint = text[2:].strip()
    hint = hint[:-2].rstrip() if hint.endswith("@@") else hint
    return _RANGES.sub("", hint, count=1) if _RANGES.match(hint) else hint


def _hunk(hints: list[str], changes: list[str], line: int, *, at_end: bool = False) -> Hunk:
    if not _has_change(changes):
        raise _syntax_failure(line, "the hunk has neither '-' nor '+' lines")
    loose = 0
    while changes[len(changes) - 1 - loose] == "":
        loose += 1
    old = tuple(text[1:] for text in changes if text[:1] != "+")
    new = tuple(text[1:] for text in changes if text[:1] != "-")
    return Hunk(tuple(hints), old, new, line, loose, at_end)


def _syntax_failure(line: int, reason: str) -> ToolFailure:
    return ToolFailure(
        "bad_patch", f"Line {line} of the patch: {reason}. Nothing was changed. The format is:\n{_EXAMPLE}"
    )
