"""The marker lines of a V4A patch, and the text that models write around a patch. Nothing is read or written here.

In a strict patch no line of a file starts with `***`: it has a sign before it. Markers at the start of a line may
therefore be written loosely. An indented marker may be a line of a file, so it counts only where a strict patch would
have none.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hermes_exec.tools.call.failure import ToolFailure

BEGIN, END = "*** Begin Patch", "*** End Patch"
HEADER = re.compile(
    r"(?i)\*{3,}+\s*+(?:(Update|Modify|Edit)|(Add|Create|New)|(Delete|Remove)|(Move|Rename))\s++File\s*+:(.*)\Z"
)
MOVE_TO = re.compile(r"(?i)\*{3,}+\s*+(?:Move|Rename)\s++to\s*+:(.*)\Z")
END_OF_FILE = re.compile(r"(?i)\*{3,}+\s*+End\s++of\s++File(?:\s*+\*++)?\s*+\Z")
NO_NEWLINE = re.compile(r"(?i)\\\s*+No newline")
_BEGIN = re.compile(r"(?i)\*{3,}+\s*+Begin\s++Patch(\s*+\*++)?")
_END = re.compile(r"(?i)\*{3,}+\s*+End\s++(?:of\s++)?Patch(\s*+\*++)?")
_ENVIRONMENT = re.compile(r"(?i)\*{3,}+\s*+Environment\s++ID\s*+:")
_ABOUT_END = re.compile(r"(?i)End\s++(?:of\s++)?Patch")
_UNIFIED_DIFF = re.compile(r"diff --git |\+\+\+ \S|--- (?:\S+/|\S+\t|/dev/null)|@@ -\d")
_FENCE = re.compile(r"`{3,}|~{3,}")
_COMMAND = re.compile(r"<<[-~]?\s*+['\"]?\w|Begin\s++Patch|(?:\A|[;&|'\"]\s*+)(?:cd|pushd|apply_?patch)\b")
_PLAIN_COMMAND = re.compile(
    r"(?:\$ )?(?:apply_?patch|cat)?(?:\s*+<<[-~]?\s*+(['\"]?)([^\s'\"|]++)\1(?:\s*+\|\s*+apply_?patch)?)?"
)
_CLOSING = re.compile(r"`{3,}|~{3,}|</[\w-]+>|'{3}|\"{3}|EOF")
_EXAMPLE = (
    "*** Begin Patch\n*** Update File: path/to/file\n@@ def name @@\n context\n-old line\n+new line\n*** End Patch"
)


class PatchLines(NamedTuple):
    """The lines of a text with a patch, and the range of the patch in them, without its first and last marker.

    `starred` is True if the first or the last marker ends with stars, as file headers then do too.
    """

    lines: list[str]
    start: int
    end: int
    starred: bool


def locate_patch(text: str) -> PatchLines:
    """Find the patch in a text, without the code fence or shell command around it, and remove its indentation.

    Raises:
        ToolFailure: `bad_patch`, if the text has no patch, no end of one, or more than one patch.
    """
    text = text.replace("\r\n", "\n").lstrip("\ufeff\u200b")
    lines = text.split("\n" if "\n" in text else "\r")
    if len(lines) == 1 and "\\n" in text:
        raise syntax_failure(1, "its line breaks are written out as '\\n'; send real line breaks")
    first = next((index for index, line in enumerate(lines) if line.lstrip().startswith("***")), len(lines))
    delimiter = _check_text_before(lines[:first])
    if first == len(lines):
        raise syntax_failure(1, f"the text has no '{BEGIN}'")
    begin = _BEGIN.fullmatch(lines[first].strip())
    start = first + 1 if begin else first
    while start < len(lines) and (not lines[start].strip() or _ENVIRONMENT.match(lines[start].lstrip())):
        start += 1
    if start == first and not HEADER.match(lines[start].lstrip()):
        raise mismatch_failure(start + 1, f"expected '{BEGIN}'", lines[start])
    end, end_stars = _find_end(lines, start, delimiter)
    lines[start:end] = _without_indent(lines[start:end])
    return PatchLines(lines, start, end, bool((begin and begin[1]) or end_stars))


def mismatch_failure(line: int, wanted: str, text: str) -> ToolFailure:
    """Return the failure for a line that is not as `wanted`; the message names unified diffs as such."""
    if _UNIFIED_DIFF.match(text):
        reason = (
            f"this is a unified diff, and a V4A patch is wanted: begin each file with '{BEGIN[:4]}Update File: path'"
        )
        return syntax_failure(line, f"{reason} and end the patch with '{END}'")
    return syntax_failure(line, f"{wanted}, found {text[:60]!r}")


def syntax_failure(line: int, reason: str) -> ToolFailure:
    """Return the failure for a line of the patch, with an example of the format."""
    return ToolFailure(
        "bad_patch", f"Line {line} of the patch: {reason}. Nothing was changed. The format is:\n{_EXAMPLE}"
    )


def _check_text_before(lines: list[str]) -> str:
    """Refuse diffs of another format and shell commands before the patch; return the delimiter of a here-document."""
    for number, line in enumerate(lines, 1):
        if _UNIFIED_DIFF.match(line.strip()):
            raise mismatch_failure(number, f"expected '{BEGIN}'", line.strip())
    commands = [line.strip() for line in lines if line.strip() and not _FENCE.match(line.strip())]
    if not any(_COMMAND.search(line) for line in commands):
        return ""
    plain = _PLAIN_COMMAND.fullmatch(commands[0])
    if plain is None or len(commands) > 1:
        reason = f"there is a shell command before '{BEGIN}'"
        raise syntax_failure(1, f"{reason}; send the patch alone, with paths relative to the working directory")
    return plain[2] or ""


def _find_end(lines: list[str], start: int, delimiter: str) -> tuple[int, bool]:
    """Return the index of the last marker, and whether it ends with stars.

    An indented marker counts only if no other line follows and the patch has no marker at the start of a line.
    """
    last = start - 1
    for index in range(start, len(lines)):
        line = lines[index].strip()
        if line and line != delimiter and not _CLOSING.fullmatch(line):
            last = index
    for index in (*range(start, len(lines)), last):
        line = lines[index].strip() if index == last else lines[index].rstrip()
        if (marker := _END.fullmatch(line)) is None:
            continue
        if index < last:
            raise syntax_failure(index + 2, f"there is text after '{END}'; send one patch a call")
        return index, marker[1] is not None
    if _ABOUT_END.search(lines[last]):
        raise syntax_failure(last + 1, f"the last line must be '{END}' alone, found {lines[last][:60]!r}")
    closed = any(line.strip() for line in lines[last + 1 :])
    raise syntax_failure(len(lines), f"the patch has no last line '{END}'" + ("" if closed else " (was it cut off?)"))


def _without_indent(lines: list[str]) -> list[str]:
    """Remove the indentation of the first line: from all lines if all have it, otherwise from the markers."""
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())] if lines else ""
    if not indent:
        return lines
    if all(line.startswith(indent) for line in lines if line.strip()):
        return [line[len(indent) :] for line in lines]
    return [line.removeprefix(indent) if _is_marker(line.removeprefix(indent)) else line for line in lines]


def _is_marker(line: str) -> bool:
    return any(marker.match(line) for marker in (HEADER, MOVE_TO, END_OF_FILE))
