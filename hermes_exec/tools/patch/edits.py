"""Edits of a text file that preserve every byte outside of them."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable
from typing import NamedTuple

from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.files.textfile import LfView, TextFile, UnclearEncoding
from hermes_exec.tools.patch import matching
from hermes_exec.tools.patch.rewrite import replacement

_MAX_LISTED = 20
_MAX_COUNTED = 10_000
_MAX_SEARCHED_LINES = 20_000
_MAX_COMPARED_LINES = 400
_MAX_COMPARED_CHARS = 120
MAX_EDIT_S = 20.0
"""The time limit for matching one file's edits: work in a thread cannot be cancelled."""

_LITERAL = frozenset({"exact", "escape_normalized"})


class Edit(NamedTuple):
    """Replace [start, end) of the LF view of a text with `text`, which has LF line ends."""

    start: int
    end: int
    text: str


def replace(
    file: TextFile, old: str, new: str, *, replace_all: bool = False, similar: bool = False
) -> tuple[bytes, str, int]:
    """Return the file's bytes with `old` replaced by `new`, the strategy that matched, and the number of replacements.

    Raises:
        ToolFailure: `no_match` (with the nearest sections), `ambiguous` (with line numbers), `over_escaped`,
            `no_change`, `encoding` or `bad_value`.
    """
    old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    if not old:
        raise ToolFailure(
            "bad_value", "'old_string' is empty. Give the text to replace, or use write_file to write a whole file."
        )
    if old == new:
        raise ToolFailure("no_change", "'old_string' and 'new_string' are identical: there is nothing to change.")
    view = LfView(file.text)
    occurrences = matching.find(
        view.text, old, similar=similar, most=_MAX_COUNTED + replace_all, overlapping=not replace_all
    )
    if occurrences is None:
        raise ToolFailure("no_match", "'old_string' was not found in the file." + suggest_sections(view.text, old))
    if len(occurrences.matches) > 1 and not replace_all:
        raise ToolFailure("ambiguous", _ambiguity_message(view.text, occurrences))
    if len(occurrences.matches) > _MAX_COUNTED:
        raise ToolFailure(
            "too_large",
            f"'old_string' matches more than {_MAX_COUNTED:,} places; change them with a program in the terminal.",
        )
    edits: list[Edit] = []
    until = time.monotonic() + MAX_EDIT_S
    for match in occurrences.matches:
        check_deadline(until)
        start = match.start if occurrences.strategy in _LITERAL else _start_with_indent(view.text, match.start)
        region = view.text[start : match.end]
        _refuse_over_escaped(region, old, new, occurrences.strategy)
        edits += minimal_edits(start, region, replacement(region, occurrences.old, new, occurrences.strategy))
    return apply_edits(file, view, edits), occurrences.strategy, len(occurrences.matches)


def check_deadline(until: float) -> None:
    """Raise ToolFailure if the time `until` has passed."""
    if time.monotonic() > until:
        raise ToolFailure(
            "too_large", f"The edit takes more than {MAX_EDIT_S:.0f} s; change the file with a program in the terminal."
        )


def _start_with_indent(text: str, start: int) -> int:
    """Return the start of the line of `start` if only white space is in between, else `start`.

    With its indentation included, new lines can get the same indentation.
    """
    begin = text.rfind("\n", 0, start) + 1
    return start if text[begin:start].strip() else begin


def minimal_edits(start: int, region: str, wanted: str) -> list[Edit]:
    """Return the edits that turn `region` at offset `start` into `wanted` without touching unchanged lines.

    Where possible the edits consist of whole lines.
    """
    before, after = _split(region), _split(wanted)
    head = 0
    while head < min(len(before), len(after)) and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < min(len(before), len(after)) - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    middle_before, middle_after = before[head : len(before) - tail], after[head : len(after) - tail]
    offsets = [start + sum(map(len, before[:head]))]
    for line in middle_before:
        offsets.append(offsets[-1] + len(line))
    matcher = difflib.SequenceMatcher(None, middle_before, middle_after)
    return [
        Edit(offsets[i1], offsets[i2], "".join(middle_after[j1:j2]))
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
    ]


def _split(text: str) -> list[str]:
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def apply_edits(file: TextFile, view: LfView, edits: Iterable[Edit]) -> bytes:
    """Return the file's bytes after `edits` of its LF view, which must not overlap.

    New lines get the line end of the lines around them.
    """
    pieces = [file.bom]
    position = 0
    for edit in sorted(edits):
        start, end = view.offset(edit.start), view.offset(edit.end)
        if start < position:
            raise ToolFailure("overlap", "Two changes touch the same lines; join them into one.")
        line_end = view.line_end_near(edit.start, file.line_end)
        text = edit.text.replace("\n", line_end) if line_end != "\n" else edit.text
        pieces += (file.encode(position, start), _encode_edit(file, start, end, text))
        position = end
    pieces.append(file.encode(position, len(file.text)))
    return b"".join(pieces)


def _encode_edit(file: TextFile, start: int, end: int, text: str) -> bytes:
    try:
        return file.encode_edit(start, end, text)
    except UnicodeEncodeError as error:
        char = error.object[error.start]
        message = (
            f"The {'file is' if file.encoding != 'mixed' else 'lines there are'} {error.encoding} text, which has no "
            f"character {char!r} (U+{ord(char):04X}). Use other characters or rewrite it with write_file."
        )
    except UnclearEncoding:
        message = (
            "The lines to change are partly Latin-1 and partly UTF-8, so the encoding of the new text is unclear. "
            "Change lines of one encoding at a time."
        )
    raise ToolFailure("encoding", message)


def suggest_sections(text: str, old: str, count: int = 3) -> str:
    """Return up to `count` sections of `text` that resemble `old`, with line numbers, as a suffix for an error message.

    Empty if no section is similar.
    """
    pattern = [line.strip() for line in old.strip("\n").split("\n")]
    anchor = next((line for line in pattern if line), "")
    lines = text.split("\n")
    if not anchor or len(lines) > _MAX_SEARCHED_LINES:
        return ""
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(anchor[:_MAX_COMPARED_CHARS])
    scored: list[tuple[float, int]] = []
    compared = 0
    for index, line in enumerate(lines):
        matcher.set_seq1(line.strip()[:_MAX_COMPARED_CHARS])
        if matcher.real_quick_ratio() >= 0.6 and matcher.quick_ratio() >= 0.6:
            ratio = matcher.ratio()
            compared += 1
            if ratio >= 0.6:
                scored.append((ratio, index))
            if compared >= _MAX_COMPARED_LINES:
                break
    if not scored:
        return ""
    best = sorted(sorted(scored, key=lambda item: -item[0])[:count], key=lambda item: item[1])
    length = min(len(pattern), 8)
    first = pattern.index(anchor)
    sections = []
    for _, index in best:
        begin = max(0, index - first)
        sections.append(
            "\n".join(
                f"{number}|{lines[number - 1][:200]}"
                for number in range(begin + 1, min(begin + length, len(lines)) + 1)
            )
        )
    return " Did you mean one of these sections?\n" + "\n---\n".join(sections)


def _ambiguity_message(text: str, occurrences: matching.Occurrences) -> str:
    numbers = [str(matching.line_number(text, match.start)) for match in occurrences.matches[:_MAX_LISTED]]
    count = len(occurrences.matches)
    more = f" and {count - _MAX_LISTED} more" if count > _MAX_LISTED else ""
    count_text = f"{count} places" if count < _MAX_COUNTED else f"{count} places or more"
    return (
        f"'old_string' matches {count_text} (strategy {occurrences.strategy}), at lines "
        f"{', '.join(numbers)}{more}. "
        "Add surrounding lines to make it unique, or set replace_all=true to change every one."
    )


def _refuse_over_escaped(region: str, old: str, new: str, strategy: str) -> None:
    if strategy == "exact":
        return
    for escaped in ("\\'", '\\"'):
        if escaped in old and escaped in new and escaped not in region:
            message = (
                f"'old_string' and 'new_string' contain {escaped}, but the file has the bare quote there. "
                "Send both without the backslash."
            )
            raise ToolFailure("over_escaped", message)
