"""Search for a piece of text that the model may have written slightly differently: nine strategies, strictest first."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

_WHITE_SPACE = re.compile(r"[ \t]+")
_SAME_LOOK = (
    "'‘’‚‛′",
    '"“”„‟″',
    "-‐‑‒–—―−",
    " \u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000",
)
_TO_ASCII = {ord(char): group[0] for group in _SAME_LOOK for char in group[1:]} | {ord("…"): "..."}
_LOOK_ALIKE_CLASSES = {group[0]: "[" + re.escape(group) + "]" for group in _SAME_LOOK}
_CODE_POINTS = 0x110000
_MAX_COMPARISONS = 400_000
_MAX_SIMILAR_CHARS = 20_000
_MAX_REGEX_STEPS = 50_000_000
_MAX_WORD_STEPS = 2_000_000_000


class Match(NamedTuple):
    """A range of the text as offsets; `end` is exclusive."""

    start: int
    end: int


class Occurrences(NamedTuple):
    """The result of a search: the strategy, all matches in order, and the searched text (as trimmed or unescaped)."""

    strategy: str
    matches: tuple[Match, ...]
    old: str


def find(
    text: str, old: str, *, similar: bool = False, most: int | None = None, overlapping: bool = False
) -> Occurrences | None:
    """Return the matches of `old` in `text` by the first strategy that finds any, or None.

    Both texts have LF line ends. At most `most` matches are returned. `overlapping` includes overlapping matches, which
    prove that the text is not unique. `similar` adds the two strategies that accept similar lines. Text that consists
    of white space only is searched for exactly.
    """
    for name, strategy in _strategies(text, old, similar, overlapping=overlapping):
        pattern = trim_boundary(old) if name == "trimmed_boundary" else old
        matches = tuple(itertools.islice(strategy(text, pattern), most))
        if matches:
            return Occurrences(name, matches, unescape(old) if name == "escape_normalized" else pattern)
    return None


Strategy = Callable[[str, str], Iterator[Match]]


def _strategies(text: str, old: str, similar: bool, *, overlapping: bool) -> Iterator[tuple[str, Strategy]]:
    """Yield the strategies in order, with their names.

    All but the last two require that every character except white space, escapes and typographic look-alikes is equal.
    The last two accept merely similar lines, and so can replace the wrong ones.
    """
    yield "exact", partial(_exact, overlapping=overlapping)
    if not old.strip():
        return
    # Most strategies need every word to occur in the text unchanged.
    words = set(old.split())
    words_are_there = len(words) * len(text) <= _MAX_WORD_STEPS and all(word in text for word in words)
    if words_are_there:
        yield "line_trimmed", _line_strategy(str.strip, overlapping)
        yield "whitespace_normalized", _whitespace_normalized
        yield "indentation_flexible", _line_strategy(lambda line: _WHITE_SPACE.sub(" ", line.strip()), overlapping)
    yield "escape_normalized", _escape_normalized
    if words_are_there:
        yield "trimmed_boundary", _line_strategy(str.strip, overlapping)
        yield "trimmed_boundary", _exact_in_line
    yield "unicode_normalized", _look_alikes
    if similar:
        yield "block_anchor", _block_anchor
        yield "context_aware", _context_aware


def trim_boundary(text: str) -> str:
    """Return `text` without blank lines at both ends and white space at its end; the first line keeps its indentation.

    A single line is trimmed at both ends.
    """
    core = text.rstrip()
    core = core[core.rfind("\n", 0, len(core) - len(core.lstrip())) + 1 :]
    return core if "\n" in core else core.strip()


def unescape(text: str) -> str:
    r"""Replace a written-out `\n`, `\t` or `\r\n` with the character that it names."""
    return text.replace("\\r\\n", "\n").replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\n")


def to_ascii(text: str) -> str:
    """Replace typographic quotes, dashes, spaces and ellipses with their ASCII look-alikes."""
    return text.translate(_TO_ASCII)


def line_number(text: str, offset: int) -> int:
    """Return the number, from 1, of the line at `offset`."""
    return text.count("\n", 0, offset) + 1


def _exact(text: str, old: str, *, overlapping: bool = False) -> Iterator[Match]:
    at = text.find(old)
    while old and at >= 0:
        yield Match(at, at + len(old))
        at = text.find(old, at + (1 if overlapping else len(old)))


class TextLines:
    """The lines of a text and their offsets."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.length = len(text)

    def span(self, first: int, count: int, *, with_end: bool = False) -> Match:
        """Return the range of `count` lines from index `first`; `with_end` includes the last line end, if
        there is one.
        """
        end = self.starts[first + count]
        return Match(self.starts[first], min(end if with_end else end - 1, self.length))


def _pattern_lines(old: str) -> tuple[list[str], bool]:
    ends = old.endswith("\n")
    return (old[:-1] if ends else old).split("\n"), ends


def find_lines(lines: Sequence[str], wanted: Sequence[str], *, overlapping: bool = False) -> Iterator[int]:
    """Yield each index at which `wanted` occurs in `lines`.

    Each distinct line is mapped to one character, so a string search finds them in linear time.
    """
    numbers: dict[str, int] = {}
    pattern, text = (
        "".join([chr(numbers.setdefault(line, len(numbers)) % _CODE_POINTS) for line in sequence])
        for sequence in (wanted, lines)
    )
    at = text.find(pattern)
    while at >= 0:
        if len(numbers) <= _CODE_POINTS or list(lines[at : at + len(wanted)]) == list(wanted):
            yield at
            at = text.find(pattern, at + (1 if overlapping else len(wanted)))
        else:
            at = text.find(pattern, at + 1)


def _line_strategy(key: Callable[[str], str], overlapping: bool) -> Strategy:
    def strategy(text: str, old: str) -> Iterator[Match]:
        pattern, ends = _pattern_lines(old)
        lines = TextLines(text)
        keys = ([key(line) for line in lines.lines], [key(line) for line in pattern])
        for index in find_lines(*keys, overlapping=overlapping):
            yield lines.span(index, len(pattern), with_end=ends)

    return strategy


def _whitespace_normalized(text: str, old: str) -> Iterator[Match]:
    parts = _WHITE_SPACE.split(old)
    if len(parts) > 1 and len(text) * len(old) <= _MAX_REGEX_STEPS:
        # Possessive, and only from the start of a run, so a long run of blanks costs linear time.
        yield from _regex(r"(?<![ \t])[ \t]++".join(re.escape(part) for part in parts), text)


def _escape_normalized(text: str, old: str) -> Iterator[Match]:
    plain = unescape(old)
    if plain != old and plain.strip():
        yield from _exact(text, plain)


def _exact_in_line(text: str, core: str) -> Iterator[Match]:
    if "\n" not in core:
        yield from _exact(text, core)


def _look_alikes(text: str, old: str) -> Iterator[Match]:
    plain = to_ascii(old)
    if (old.isascii() and text.isascii()) or len(text) * len(old) > _MAX_REGEX_STEPS:
        return
    pattern = re.sub(r"\.\.\.|--|.", _look_alike_pattern, plain, flags=re.DOTALL)
    yield from _regex(pattern, text)


def _look_alike_pattern(match: re.Match[str]) -> str:
    piece = match.group()
    if piece == "...":
        return r"(?:\.\.\.|…)"
    if piece == "--":
        dash = _LOOK_ALIKE_CLASSES["-"]
        return f"(?:{dash}{dash}|[–—―])"
    return _LOOK_ALIKE_CLASSES.get(piece) or re.escape(piece)


def _regex(pattern: str, text: str) -> Iterator[Match]:
    for match in re.finditer(pattern, text):
        if match.end() > match.start():
            yield Match(*match.span())


def _block_anchor(text: str, old: str) -> Iterator[Match]:
    pattern, ends = _pattern_lines(old)
    count = len(pattern)
    if count < 3 or len(old) > _MAX_SIMILAR_CHARS:
        return
    lines = TextLines(text)
    keys, wanted = [line.strip() for line in lines.lines], [line.strip() for line in pattern]
    places = [i for i in range(len(keys) - count + 1) if keys[i] == wanted[0] and keys[i + count - 1] == wanted[-1]]
    needed = 0.50 if len(places) == 1 else 0.70
    for index in places[: _MAX_COMPARISONS // (count * count)]:
        likeness = difflib.SequenceMatcher(
            None, "\n".join(keys[index + 1 : index + count - 1]), "\n".join(wanted[1:-1])
        ).ratio()
        if likeness >= needed:
            yield lines.span(index, count, with_end=ends)


def _context_aware(text: str, old: str) -> Iterator[Match]:
    pattern, ends = _pattern_lines(old)
    count = len(pattern)
    lines = TextLines(text)
    places = len(lines.lines) - count + 1
    if places < 1 or places * count > _MAX_COMPARISONS or len(old) > _MAX_SIMILAR_CHARS:
        return
    keys, wanted = [line.strip() for line in lines.lines], [line.strip() for line in pattern]
    cache: dict[tuple[str, str], bool] = {}
    scores = [
        sum(_are_alike(a, b, cache) for a, b in zip(keys[i : i + count], wanted, strict=True)) for i in range(places)
    ]
    best = max(scores)
    if best * 2 < count or not best:
        return
    last = -1
    for index, score in enumerate(scores):
        if score == best and index > last:
            last = index + count - 1
            yield lines.span(index, count, with_end=ends)


def _are_alike(a: str, b: str, cache: dict[tuple[str, str], bool]) -> bool:
    if a == b:
        return True
    if (a, b) not in cache:
        matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
        cache[a, b] = (
            min(len(a), len(b)) > 0
            and matcher.real_quick_ratio() >= 0.8
            and matcher.quick_ratio() >= 0.8
            and matcher.ratio() >= 0.8
        )
    return cache[a, b]
