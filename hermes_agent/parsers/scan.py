"""Goes through a model's text once, from mark to mark, and collects content, thinking and calls."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hermes_agent.messages import AnswerProblem, ToolCall
from hermes_agent.parsers.argument_types import Toolset
from hermes_agent.parsers.base import BrokenCall, ParsedText, Parser, Tools, derive_id
from hermes_agent.parsers.blocks import Block, ParsedCall, cut_call
from hermes_agent.parsers.json_text import skip_space
from hermes_agent.parsers.nesting import CallTags
from hermes_agent.parsers.problems import OTHERS, RESULTS, fence_problem, invention_problem, thinking_problem
from hermes_agent.parsers.quoting import QuotingState, ends_in_fence, without_fences
from hermes_agent.parsers.source import SourceText
from hermes_agent.parsers.thinking import THINK, Thinking

_SHORTEST_BEGUN_TAG = 5
# Servers that keep special tokens, which some formats need, also keep the end of the turn.
_ENDS = re.compile(
    r"(?:<\|(?:im_end|eot_id|eom_id|endoftext|end_of_text|observation|user|end)\|>|<｜end▁of▁sentence｜>|</s>|<end_of_turn>|\s)++\Z"
)

_IN_SENTENCE = re.compile(r"""[\w,;:)"'`][ \t]+["'(]?\Z""")
_LONGEST_SPACE = 20


ReadBlock = Callable[[SourceText, int], Block]
"""Reads the block whose mark ends at this position."""

ReadLeadingBlock = Callable[[SourceText, int], Block | None]
"""Reads a block without a mark that begins at this position. Returns None if there is none."""


@dataclass(frozen=True)
class Family:
    """The way in which one family of models writes calls.

    Attributes:
        form: The correct form, for messages to a model.
        openings: The marks at which a call begins, each with its reader.
        sections: The marks that begin a list of calls, each with its closing tag.
        dropped: Tags without a meaning of their own.
        start: Reads calls without a mark at the beginning of a text.
        begins_line: Returns whether such a call begins a line after a position.
        thinking: The tags around thinking.
        only_calls: Marks that can begin nothing but calls, even in thinking.
        others: Tags of this family that begin text in another role.
        fences: Whether a code fence is a form of calls.
        mentions: Whether the tag of another role's turn is text in the middle of a sentence.
    """

    form: str
    openings: Mapping[str, ReadBlock]
    sections: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    start: ReadLeadingBlock | None = None
    begins_line: Callable[[SourceText, int], bool] | None = None
    thinking: tuple[Thinking, ...] = (THINK,)
    only_calls: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    fences: bool = False
    mentions: bool = False

    @cached_property
    def section_tags(self) -> Mapping[str, CallTags]:
        """The tags around lists of calls, by the opening tag."""
        return {opening: CallTags(opening, closing, self.form) for opening, closing in self.sections.items()}

    @cached_property
    def only_call(self) -> re.Pattern[str]:
        """Pattern of the first of `only_calls`."""
        return any_of(self.only_calls)

    @cached_property
    def begins(self) -> re.Pattern[str]:
        """Pattern of the beginning of a call or a list of calls."""
        return any_of({*self.openings, *self.sections})

    @cached_property
    def thinks(self) -> re.Pattern[str]:
        """Pattern of an opening or closing tag of thinking."""
        return any_of(tag for kind in self.thinking for tag in kind)

    @cached_property
    def closes(self) -> Mapping[str, re.Pattern[str]]:
        """Patterns of the closing tags of thinking."""
        return {kind.close: any_of([kind.close]) for kind in self.thinking}

    def marks(self) -> re.Pattern[str]:
        """Return the pattern of every tag with a meaning between calls."""
        thinking = (tag for kind in self.thinking for tag in kind)
        return any_of({*self.openings, *self.sections, *self.dropped, *thinking, *self.others, *OTHERS})


def any_of(tags: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of the first of these tags. Of two that begin alike it matches the longer one."""
    return re.compile("|".join(re.escape(tag) for tag in sorted(tags, key=len, reverse=True)) or r"(?!)")


def parser(family: Family) -> Parser:
    """Return the parser of a family."""
    marks = family.marks()

    def parse(text: str, tools: Tools) -> ParsedText:
        return _Scanner(family, marks, SourceText(text, Toolset(tools or ()))).run()

    return parse


class _Scanner:
    def __init__(self, family: Family, marks: re.Pattern[str], source: SourceText) -> None:
        self._family, self._marks, self._source, self._text = family, marks, source, source.text
        self._closing = {kind.open: kind.close for kind in family.thinking}
        self._others = {*OTHERS, *family.others}
        self._quoting = QuotingState()
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ParsedCall] = []
        self._problems: list[AnswerProblem] = []
        self._position = 0
        self._cut = self._opened = False
        # From this position on, thinking is not closed.
        self._unclosed_from = len(self._text) + 1
        # The number of the code fence in which a call is quoted, and whether a fence is read as calls.
        self._quoted_in, self._reads_fence = 0, False
        # So far there was only white space and thinking.
        self._fresh = self._blank = True

    def run(self) -> ParsedText:
        """Read the whole text and return its parts."""
        while self._position < len(self._text):
            if self._fresh and self._read_leading_block():
                continue
            mark = self._marks.search(self._text, self._position)
            if mark is None:
                break
            self._write(self._text[self._position : mark.start()])
            self._position = mark.end()
            self._handle_tag(mark.group(), mark.start())
        self._end()
        content = "".join(self._content)
        if self._reads_fence and not without_fences(content).strip():
            content = ""
        content_or_none = _ENDS.sub("", content).strip() or None
        reasoning = "\n".join(part.strip() for part in self._reasoning).strip() or None
        parsed = ParsedText(content_or_none, reasoning, cut=self._cut, problems=tuple(self._problems))
        return _with_ids(self._text, self._calls, parsed)

    def _read_leading_block(self) -> bool:
        self._fresh = False
        if self._family.start is None:
            return False
        start = skip_space(self._text, self._position)
        block = self._family.start(self._source, start)
        if block is not None:
            self._add_block(start, block)
        return block is not None

    def _write(self, part: str) -> None:
        self._content.append(part)
        self._quoting.write(part)
        self._blank = self._blank and (not part or part.isspace())

    def _handle_tag(self, tag: str, start: int) -> None:
        read = self._family.openings.get(tag)
        if tag in self._closing or tag in self._closing.values():
            self._handle_thinking(tag, start)
        elif self._is_quoted(tag) or self._is_mentioned(tag, start):
            self._write(tag)
        elif tag in self._others:
            self._handle_foreign_tag(tag, start)
        elif read is not None:
            self._add_block(start, read(self._source, self._position))
        elif tag in self._family.sections:
            self._read_section(start)

    def _is_quoted(self, tag: str) -> bool:
        """Return whether the tag is inside code of the content.

        Some models write calls as one code fence that is the whole answer and contains only calls: its tags are not
        quoted.
        """
        if self._family.fences or self._reads_fence:
            return False
        if not self._quoting.in_fence:
            return self._quoting.in_code(self._text, self._position)
        if tag in self._others:
            return True
        begins = tag in self._family.openings or tag in self._family.sections
        if begins and self._quoting.in_first_fence and ends_in_fence(self._text, self._position):
            self._reads_fence = True
            return False
        self._quoted_in = self._quoting.fences if begins else self._quoted_in
        return True

    def _is_mentioned(self, tag: str, start: int) -> bool:
        if not self._family.mentions or tag not in self._others or tag in RESULTS:
            return False
        return _IN_SENTENCE.search(self._text, max(0, start - _LONGEST_SPACE), start) is not None

    def _handle_thinking(self, tag: str, start: int) -> None:
        if (self._opened and self._quoting.in_fence) or self._quoting.goes_on(self._source, self._position):
            self._write(tag)
        elif tag in self._closing:
            self._think(self._closing[tag])
        else:
            self._close_thinking(start)

    def _think(self, close: str) -> None:
        start = self._position
        closing = None
        if start < self._unclosed_from:
            closing = QuotingState().first_outside(self._family.closes[close], self._source, start)
        if closing is not None:
            end, self._position = closing.span()
        else:
            self._unclosed_from = min(self._unclosed_from, start)
            call = self._family.only_call.search(self._text, start)
            end = self._position = len(self._text) if call is None else call.start()
            if call is None and self._holds_call(start):
                self._problems.append(thinking_problem(close))
        self._reasoning.append(self._text[start:end])
        self._after_thinking()

    def _holds_call(self, start: int) -> bool:
        """Return whether text from `start` on looks like a call."""
        if self._family.begins_line is None:
            return self._family.begins.search(self._text, start) is not None
        only = self._family.only_call.search(self._text, start)
        return only is not None or self._family.begins_line(self._source, start)

    def _close_thinking(self, start: int) -> None:
        """Treat all text before a closing tag without an opening one as thinking: the chat template had opened it."""
        if self._opened:
            return
        self._content, self._calls, self._reasoning = [], [], [self._text[:start]]
        self._quoting, self._quoted_in, self._reads_fence = QuotingState(), 0, False
        self._cut, self._blank = False, True
        self._after_thinking()

    def _after_thinking(self) -> None:
        self._opened = True
        self._fresh = self._blank and not self._calls

    def _find_template_close(self, start: int) -> int:
        """Return the position after `start` that closes thinking of the chat template; -1 if there is none."""
        if self._opened:
            return -1
        match = self._quoting.first_outside(self._family.thinks, self._source, start)
        return match.start() if match and match.group() not in self._closing else -1

    def _handle_foreign_tag(self, tag: str, start: int) -> None:
        """Leave out text in another role, and all text after it: the model invented it."""
        if _ENDS.match(self._text, start):
            self._position = len(self._text)
        elif (closing := self._find_template_close(start)) >= 0:
            self._position = closing
        else:
            unread = not self._calls and self._holds_call(start)
            self._problems.append(invention_problem(tag, self._text[start:], unread=unread))
            self._position = len(self._text)

    def _add_block(self, start: int, block: Block) -> None:
        if self._quoting.in_code(self._text, block.end) and not self._family.fences:
            block = Block(block.end)
        unclosed = block.end == len(self._text) and bool(block.calls) and block.calls[-1].error is not None
        # A value in an unfinished call may name the tags of thinking, and quote a call after them.
        if unclosed and not block.begun and (closing := self._find_template_close(start)) >= 0:
            # The tag was only named, in thinking that the chat template opened.
            self._position = closing
            return
        if not block.calls:
            self._write(self._text[start : block.end])
        self._calls += block.calls
        self._position, self._cut = block.end, block.cut

    def _read_section(self, start: int) -> None:
        """Read a list of calls. It must have at least one, or its text would be lost between content and calls."""
        first = skip_space(self._text, self._position)
        mark = self._marks.search(self._text, first)
        if mark is not None and mark.start() == first:
            return
        if mark is None:
            self._add_block(start, Block(len(self._text), (cut_call(self._text[start:], self._family.form),), cut=True))
            return
        read = self._family.section_tags[self._text[start : self._position]].broken_call
        self._add_block(start, read(self._source, self._position, "no call begins here", cut=False))

    def _end(self) -> None:
        """Read the rest of the text. A tag that the token limit cut is not content."""
        tail = self._text[self._position :]
        tags = (*self._family.openings, *self._family.sections)
        begun = max((_partial_tag(tail, tag) for tag in tags), key=len, default="")
        if begun and not self._quoting.in_fence:
            self._calls.append(cut_call(begun, self._family.form))
            tail, self._cut = tail[: -len(begun)], True
        self._write(tail)
        if self._quoted_in and not self._calls and self._quoted_in == self._quoting.fences:
            self._quoting.write("\n")
            if self._quoting.ends_with_fence:
                self._problems.append(fence_problem(self._family.form))


def _partial_tag(tail: str, tag: str) -> str:
    for length in range(len(tag) - 1, _SHORTEST_BEGUN_TAG - 1, -1):
        if tail.endswith(tag[:length]):
            return tag[:length]
    return ""


def _with_ids(text: str, parsed_calls: list[ParsedCall], parsed: ParsedText) -> ParsedText:
    """Return `parsed` with the calls. Each id of the format is kept once, so that answers can be matched to calls."""
    if not parsed_calls:
        return parsed
    # Hashed once for all calls: a text may have a thousand calls.
    digest = hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()
    calls: list[ToolCall] = []
    errors: list[BrokenCall] = []
    taken: set[str] = set()
    for place, call in enumerate(parsed_calls):
        identity = call.id if call.id and call.id not in taken else derive_id(digest, place)
        taken.add(identity)
        if call.error is None:
            calls.append(ToolCall(identity, call.name, call.arguments))
        else:
            errors.append(BrokenCall(place, call.arguments, call.error, identity))
    return parsed._replace(calls=tuple(calls), errors=tuple(errors))
