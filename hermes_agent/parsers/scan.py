"""Goes through a model's text once, from mark to mark, and gathers content, thinking and calls."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hermes_agent.messages import ToolCall
from hermes_agent.parsers.base import BrokenCall, Parsed, Parser, Tools, made_id
from hermes_agent.parsers.json_text import skip_space
from hermes_agent.parsers.thinking import THINK, Thinking, thought_at
from hermes_agent.parsers.typed import Toolset

_SHORTEST_BEGUN_TAG = 5
# Servers that keep special tokens, which some formats of calls need, hand the end of the turn through.
_ENDS = re.compile(
    r"(?:<\|(?:im_end|eot_id|eom_id|endoftext|end_of_text|observation|user)\|>|<｜end▁of▁sentence｜>|\s)++\Z"
)


class Found(NamedTuple):
    """One call, or with `error` what was meant as one; `arguments` then holds what the model wrote."""

    name: str
    arguments: str
    id: str = ""
    error: str | None = None


class Block(NamedTuple):
    """What a family reads at a mark, and where the text goes on. Without calls it is text like any other."""

    end: int
    found: tuple[Found, ...] = ()
    cut: bool = False


Read = Callable[[str, int, Toolset], Block]
"""Reads the block that begins before this position, right after the mark."""

Start = Callable[[str, int, Toolset], Block | None]
"""Reads a block that begins at this position with no mark at all; None when none does."""


@dataclass(frozen=True)
class Family:
    """How one family writes calls.

    `form` is the correct form, to be shown to a model. `openings` are the marks at which a call begins, each with what
    reads it; `sections` those that begin a list of calls, `dropped` tags without a meaning of their own. `start` reads
    calls with which a text begins without any mark.
    """

    form: str
    openings: Mapping[str, Read]
    sections: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    start: Start | None = None
    thinking: tuple[Thinking, ...] = (THINK,)

    def marks(self) -> re.Pattern[str]:
        """Finds every tag that means something between calls."""
        thinking = (tag for kind in self.thinking for tag in kind)
        known = {*self.openings, *self.sections, *self.dropped, *thinking}
        return re.compile("|".join(re.escape(tag) for tag in sorted(known, key=len, reverse=True)))


def parser(family: Family) -> Parser:
    """The parser of a family."""
    marks = family.marks()

    def parse(text: str, tools: Tools) -> Parsed:
        return _Scan(family, marks, text, Toolset(tools or ())).parsed()

    return parse


def broken(text: str, why: str, form: str) -> Found:
    """What was meant as a call and is none."""
    return Found("", text.strip(), "", f"This tool call was not understood: {why}. Write {form}")


def cut_off(text: str, form: str) -> Found:
    """A call that the token limit cut."""
    error = f"This tool call was cut off before its end. Write a shorter one: {form}"
    return Found("", text.strip(), "", error)


class _Scan:
    def __init__(self, family: Family, marks: re.Pattern[str], text: str, tools: Toolset) -> None:
        self._family, self._marks, self._text, self._tools = family, marks, text, tools
        self._closing = {kind.open: kind.close for kind in family.thinking}
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._found: list[Found] = []
        self._position = 0
        self._cut = self._opened = False
        # Nothing was written yet but white space and thinking.
        self._fresh = self._blank = True

    def parsed(self) -> Parsed:
        """All of the text."""
        while self._position < len(self._text):
            if self._fresh and self._began():
                continue
            mark = self._marks.search(self._text, self._position)
            if mark is None:
                break
            self._write(self._text[self._position : mark.start()])
            self._position = mark.end()
            self._meet(mark.group(), mark.start())
        self._end()
        content = _ENDS.sub("", "".join(self._content)).strip() or None
        reasoning = "\n".join(part.strip() for part in self._reasoning).strip() or None
        return _with_ids(self._text, self._found, Parsed(content, reasoning, cut=self._cut))

    def _began(self) -> bool:
        self._fresh = False
        if self._family.start is None:
            return False
        start = skip_space(self._text, self._position)
        block = self._family.start(self._text, start, self._tools)
        if block is not None:
            self._take(start, block)
        return block is not None

    def _write(self, part: str) -> None:
        self._content.append(part)
        self._blank = self._blank and (not part or part.isspace())

    def _meet(self, tag: str, start: int) -> None:
        if read := self._family.openings.get(tag):
            self._take(start, read(self._text, self._position, self._tools))
        elif tag in self._closing:
            thought = thought_at(self._text, self._position, self._closing[tag])
            self._reasoning.append(thought.text)
            self._position = thought.end
            self._after_thinking()
        elif tag in self._family.sections:
            self._section(start)
        elif tag not in self._family.dropped and not self._opened:
            # The chat template had opened the thinking.
            self._content, self._found, self._reasoning = [], [], [self._text[:start]]
            self._cut, self._blank = False, True
            self._after_thinking()

    def _after_thinking(self) -> None:
        self._opened = True
        self._fresh = self._blank and not self._found

    def _take(self, start: int, block: Block) -> None:
        if not block.found:
            self._write(self._text[start : block.end])
        self._found += block.found
        self._position, self._cut = block.end, block.cut

    def _section(self, start: int) -> None:
        """A list of calls must have at least one, or what stands in it is lost between content and calls."""
        first = skip_space(self._text, self._position)
        mark = self._marks.search(self._text, first)
        if mark is not None and mark.start() == first:
            return
        end = len(self._text) if mark is None else mark.start()
        inside, form = self._text[start:end], self._family.form
        what = cut_off(inside, form) if mark is None else broken(inside, "no call begins here", form)
        self._take(start, Block(end, (what,), cut=mark is None))

    def _end(self) -> None:
        """A tag that the token limit cut is no content."""
        tail = self._text[self._position :]
        tags = (*self._family.openings, *self._family.sections)
        begun = max((_begun(tail, tag) for tag in tags), key=len)
        if begun:
            self._found.append(cut_off(begun, self._family.form))
            tail, self._cut = tail[: -len(begun)], True
        self._write(tail)


def _begun(tail: str, tag: str) -> str:
    for length in range(len(tag) - 1, _SHORTEST_BEGUN_TAG - 1, -1):
        if tail.endswith(tag[:length]):
            return tag[:length]
    return ""


def _with_ids(text: str, found: list[Found], parsed: Parsed) -> Parsed:
    """Ids that the format has are kept, but each only once, so that answers can be told apart."""
    if not found:
        return parsed
    # Once for all calls: a text of a thousand calls would be hashed a thousand times.
    digest = hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()
    calls: list[ToolCall] = []
    errors: list[BrokenCall] = []
    taken: set[str] = set()
    for place, call in enumerate(found):
        identity = call.id if call.id and call.id not in taken else made_id(digest, place)
        taken.add(identity)
        if call.error is None:
            calls.append(ToolCall(identity, call.name, call.arguments))
        else:
            errors.append(BrokenCall(place, call.arguments, call.error, identity))
    return parsed._replace(calls=tuple(calls), errors=tuple(errors))
