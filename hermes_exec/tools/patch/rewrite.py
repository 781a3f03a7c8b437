"""Replacement text for loosely matched pieces of a file.

Unchanged lines keep their bytes; new lines get the file's indentation.
"""

from __future__ import annotations

import difflib
import re

from hermes_exec.tools.patch.matching import to_ascii, trim_boundary, unescape

_INDENT = re.compile(r"[ \t\u00a0]*")
_MAX_CHAR_PAIRS = 250_000


def replacement(region: str, old: str, new: str, strategy: str) -> str:
    """Return the replacement for `region`, which `strategy` matched for `old` (`Occurrences.old`), if the model wants
    `new`.

    All texts have LF line ends.
    """
    if strategy == "exact":
        return new
    if strategy == "escape_normalized":
        return unescape(new)
    if strategy == "trimmed_boundary":
        new = trim_boundary(new)
    if old.endswith("\n") and not region.endswith("\n") and new.endswith("\n"):
        old, new = old[:-1], new[:-1]
    region_lines, old_lines, new_lines = region.split("\n"), old.split("\n"), new.split("\n")
    if len(region_lines) != len(old_lines):
        return new
    indents = _indent_map(region_lines, old_lines)
    result: list[str] = []
    autojunk = len(old_lines) * len(new_lines) > _MAX_CHAR_PAIRS
    matcher = difflib.SequenceMatcher(None, old_lines, new_lines, autojunk)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            result += region_lines[i1:i2]
        elif strategy == "unicode_normalized" and i2 - i1 == j2 - j1:
            result += [
                _keep_punctuation(*lines)
                for lines in zip(region_lines[i1:i2], old_lines[i1:i2], new_lines[j1:j2], strict=True)
            ]
        else:
            result += [_reindent(line, indents) for line in new_lines[j1:j2]]
    return "\n".join(result)


def _indent(line: str) -> str:
    match = _INDENT.match(line)
    return match.group() if match else ""


def _indent_map(region_lines: list[str], old_lines: list[str]) -> dict[str, str]:
    indents: dict[str, str] = {}
    for region_line, old_line in zip(region_lines, old_lines, strict=True):
        if old_line.strip() and region_line.strip():
            indents.setdefault(_indent(old_line), _indent(region_line))
    return indents


def _reindent(line: str, indents: dict[str, str]) -> str:
    if not line.strip():
        return line
    indent = _indent(line)
    return _map_indent(indent, indents) + line[len(indent) :]


def _map_indent(indent: str, indents: dict[str, str]) -> str:
    if indent in indents:
        return indents[indent]
    shorter = [other for other in indents if indent.startswith(other)]
    if shorter:
        base = max(shorter, key=len)
        extra = indent[len(base) :]
        return indents[base] + (indents.get(extra, extra) if base else extra)
    longer = [other for other in indents if other.startswith(indent)]
    if longer:
        base = min(longer, key=len)
        surplus = base[len(indent) :]
        if indents[base].endswith(surplus):
            return indents[base][: len(indents[base]) - len(surplus)]
    return indent


def _keep_punctuation(region_line: str, old_line: str, new_line: str) -> str:
    plain = to_ascii(old_line)
    if (
        len(region_line) != len(plain)
        or to_ascii(region_line) != plain
        or len(plain) != len(old_line)
        or len(plain) * len(new_line) > _MAX_CHAR_PAIRS
    ):
        return new_line
    pieces = []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old_line, new_line, autojunk=False).get_opcodes():
        pieces.append(region_line[i1:i2] if tag == "equal" else new_line[j1:j2])
    return "".join(pieces)
