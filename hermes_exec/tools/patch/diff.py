"""A unified diff of two versions of a file, limited in size and time."""

from __future__ import annotations

import difflib

from hermes_exec.tools.files.textfile import decode

_MAX_MIDDLE_LINES = 4_000
_CONTEXT = 3


def file_diff(path: str, before: bytes | None, after: bytes | None, *, limit_chars: int = 20_000) -> str:
    """Return the diff from `before` to `after` (None: the file does not exist).

    Binary files and changes above the limits are summarized in one line.
    """
    path = path.lstrip("/")
    old, new = _text(before), _text(after)
    if old is None or new is None:
        return f"Binary files a/{path} and b/{path} differ\n"
    old_lines, new_lines = _lines(old), _lines(new)
    head = _common(old_lines, new_lines)
    tail = _common(old_lines[head:][::-1], new_lines[head:][::-1])
    head, tail = max(0, head - _CONTEXT), max(0, tail - _CONTEXT)
    old_middle, new_middle = old_lines[head : len(old_lines) - tail], new_lines[head : len(new_lines) - tail]
    names = (
        f"--- {'/dev/null' if before is None else 'a/' + path}\n+++ {'/dev/null' if after is None else 'b/' + path}\n"
    )
    if len(old_middle) + len(new_middle) > _MAX_MIDDLE_LINES:
        return names + (
            f"... {len(old_middle)} lines became {len(new_middle)} lines from line {head + 1} on; too many to "
            "show ...\n"
        )
    body = "".join(_hunks(old_middle, new_middle, head))
    if len(body) > limit_chars:
        shown_part = body[:limit_chars].rsplit("\n", 1)[0]
        body = f"{shown_part}\n... diff cut, {len(body) - len(shown_part)} more characters ...\n"
    return names + body if body else ""


def _text(data: bytes | None) -> str | None:
    file = decode(data or b"")
    return None if file is None else file.readable_text()


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    ended = [line + "\n" for line in lines[:-1]]
    return ended + ([lines[-1]] if lines[-1] else [])


def _common(old: list[str], new: list[str]) -> int:
    count = 0
    for left, right in zip(old, new, strict=False):
        if left != right:
            break
        count += 1
    return count


def _hunks(old: list[str], new: list[str], shift: int) -> list[str]:
    pieces = []
    for group in difflib.SequenceMatcher(None, old, new).get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        pieces.append(f"@@ -{_range(first[1], last[2], shift)} +{_range(first[3], last[4], shift)} @@\n")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                pieces += [_row(" ", line) for line in old[i1:i2]]
            else:
                pieces += [_row("-", line) for line in old[i1:i2]]
                pieces += [_row("+", line) for line in new[j1:j2]]
    return pieces


def _row(sign: str, line: str) -> str:
    text = line.replace("\r\n", "\n")
    return sign + (text if text.endswith("\n") else text + "\n\\ No newline at end of file\n")


def _range(start: int, stop: int, shift: int) -> str:
    length = stop - start
    begin = start + shift + (1 if length else 0)
    return str(begin) if length == 1 else f"{begin},{length}"
