"""Application of the hunks of one V4A update to one file's bytes."""

from __future__ import annotations

import bisect
import time
from collections.abc import Sequence
from dataclasses import replace

from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.files.textfile import LfView, TextFile
from hermes_exec.tools.patch import matching
from hermes_exec.tools.patch.edits import MAX_EDIT_S, Edit, apply_edits, check_deadline, minimal_edits, suggest_sections
from hermes_exec.tools.patch.matching import Match, Occurrences, TextLines
from hermes_exec.tools.patch.rewrite import replacement
from hermes_exec.tools.patch.v4a import Hunk

_MAX_PLACES = 200_000


def apply_hunks(
    file: TextFile, hunks: Sequence[Hunk], path: str, *, similar: bool = False
) -> tuple[bytes, tuple[str, ...]]:
    """Return the file's bytes after all `hunks`, and the strategy that matched each hunk.

    Every hunk is searched for in the original file.

    Raises:
        ToolFailure: `no_match`, `ambiguous`, `overlap` or `encoding`.
    """
    view = LfView(file.text)
    edits: list[Edit] = []
    strategies = []
    until = time.monotonic() + MAX_EDIT_S
    for number, hunk in enumerate(hunks, 1):
        check_deadline(until)
        name = f"{path}, hunk {number} (line {hunk.line} of the patch)"
        hunk_edits, strategy = _locate(view.text, hunk, name, similar)
        edits += hunk_edits
        strategies.append(strategy)
    return apply_edits(file, view, edits), tuple(strategies)


def _locate(text: str, hunk: Hunk, name: str, similar: bool) -> tuple[list[Edit], str]:
    if not hunk.old:
        return _insertion(text, hunk, name), "insertion"
    variants = [hunk]
    if hunk.loose_end:
        variants.append(replace(hunk, old=hunk.old[: -hunk.loose_end], new=hunk.new[: -hunk.loose_end], loose_end=0))
    for variant in variants:
        if not variant.old:
            return _insertion(text, variant, name), "insertion"
        occurrences = _find_occurrences(text, variant, similar)
        if occurrences is None:
            continue
        match = _choose(text, variant, occurrences, name)
        return _hunk_edits(text, variant, occurrences, match), occurrences.strategy
    raise ToolFailure(
        "no_match", f"{name}: its lines were not found in the file." + suggest_sections(text, "\n".join(hunk.old))
    )


def _find_occurrences(text: str, hunk: Hunk, similar: bool) -> Occurrences | None:
    """Search for the hunk's lines exactly, then by the strategies. Only matches of whole lines count."""
    lines = TextLines(text)
    exact = tuple(lines.span(index, len(hunk.old)) for index in matching.find_lines(lines.lines, hunk.old))
    old = "\n".join(hunk.old)
    occurrences = Occurrences("exact", exact, old) if exact else None
    if occurrences is None and old.strip():
        occurrences = matching.find(text, old, similar=similar, most=_MAX_PLACES)
    if occurrences is None:
        return None
    count = occurrences.old.count("\n")
    matches = tuple(
        match for match in occurrences.matches if _whole_lines(text, match) and text.count("\n", *match) == count
    )
    if hunk.at_end_of_file:
        matches = tuple(match for match in matches if not text[match.end :].strip())
    return Occurrences(occurrences.strategy, matches, occurrences.old) if matches else None


def _whole_lines(text: str, match: Match) -> bool:
    return (match.start == 0 or text[match.start - 1] == "\n") and (match.end == len(text) or text[match.end] == "\n")


def _choose(text: str, hunk: Hunk, occurrences: Occurrences, name: str) -> Match:
    if len(occurrences.matches) == 1:
        return occurrences.matches[0]
    starts = [match.start for match in occurrences.matches]
    after = {bisect.bisect_left(starts, position) for position in _hint_positions(text, hunk.hints)} - {len(starts)}
    if len(after) == 1:
        return occurrences.matches[after.pop()]
    numbers = ", ".join(str(matching.line_number(text, match.start)) for match in occurrences.matches[:20])
    hint = "its hint does not distinguish them" if hunk.hints else "it has no hint"
    message = (
        f"{name}: its lines occur {len(occurrences.matches)} times, at lines {numbers}, and {hint}. Add context "
        "lines, or '@@ line above @@'."
    )
    raise ToolFailure("ambiguous", message)


def _hint_positions(text: str, hints: Sequence[str]) -> list[int]:
    """Return the starts of the lines that match the last hint. Each hint is searched for after the previous one."""
    if not hints:
        return []
    lines = TextLines(text)
    keys = [line.strip() for line in lines.lines]
    begin = 0
    places: list[int] = []
    for hint in hints:
        wanted = hint.strip()
        places = [i for i in range(begin, len(keys)) if keys[i] == wanted] or [
            i for i in range(begin, len(keys)) if wanted in keys[i]
        ]
        if not places:
            return []
        begin = places[0]
    return [lines.starts[index] for index in places]


def _hunk_edits(text: str, hunk: Hunk, occurrences: Occurrences, match: Match) -> list[Edit]:
    region = text[match.start : match.end]
    if not hunk.new:
        return [_removal(text, match)]
    wanted = replacement(
        region,
        occurrences.old,
        "\n".join(hunk.new),
        occurrences.strategy if occurrences.strategy != "exact" else "line_trimmed",
    )
    return _minimal_line_edits(text, match, wanted, hunk.final_newline)


def _minimal_line_edits(text: str, match: Match, wanted: str, final_newline: bool | None) -> list[Edit]:
    """Return `minimal_edits` for whole lines.

    The line end after the match is included, so a changed last line keeps it unless `final_newline` says otherwise.
    """
    if final_newline is not None and text[match.end :] in ("", "\n"):
        return minimal_edits(match.start, text[match.start :], wanted + "\n" * final_newline)
    if match.end < len(text):
        return minimal_edits(match.start, text[match.start : match.end + 1], wanted + "\n")
    return minimal_edits(match.start, text[match.start : match.end], wanted)


def _removal(text: str, match: Match) -> Edit:
    if match.end < len(text):
        return Edit(match.start, match.end + 1, "")
    return Edit(max(0, match.start - 1), match.end, "")


def _insertion(text: str, hunk: Hunk, name: str) -> list[Edit]:
    new_text = "\n".join(hunk.new)
    if not hunk.hints:
        return [_append(text, hunk)]
    places = _hint_positions(text, hunk.hints)
    if len(places) != 1:
        many = f"occurs {len(places)} times" if places else "was not found"
        kind = "ambiguous" if places else "no_match"
        raise ToolFailure(
            kind,
            f"{name}: it only adds lines, and its hint {hunk.hints[-1]!r} {many}. Add a context line to show where.",
        )
    end = text.find("\n", places[0])
    return [_append(text, hunk)] if end < 0 else [Edit(end + 1, end + 1, new_text + "\n")]


def _append(text: str, hunk: Hunk) -> Edit:
    follows_newline = not text or text.endswith("\n")
    final_newline = follows_newline if hunk.final_newline is None else hunk.final_newline
    return Edit(len(text), len(text), "\n" * (not follows_newline) + "\n".join(hunk.new) + "\n" * final_newline)
