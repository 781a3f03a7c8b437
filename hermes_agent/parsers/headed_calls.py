"""Calls of the form BEGIN head SEPARATOR json END, as DeepSeek V3 and Kimi K2 write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from hermes_agent.parsers.blocks import Block, cut_call
from hermes_agent.parsers.json_call import Bodies, call_with, is_empty
from hermes_agent.parsers.nesting import CallTags
from hermes_agent.parsers.source import SourceText
from hermes_agent.parsers.thinking import THINK


class Head(NamedTuple):
    """The tool of a call, and the start of its arguments."""

    name: str
    arguments: int
    id: str = ""


HeadAt = Callable[[SourceText, int, int, int], Head | None]
"""Reads the head. Its arguments are the source, the start of the head, and the start and end of the separator."""


@dataclass(frozen=True)
class HeadedFormat:
    """The tags of one such format. `others` are tags that end an unclosed call."""

    opening: str
    separator: str
    closing: str
    others: tuple[str, ...]
    head: HeadAt
    form: str

    def reader(self) -> Callable[[SourceText, int], Block]:
        """Return a function that reads one call."""
        others = (self.opening, *self.others, *THINK)
        tags = CallTags(self.opening, self.closing, self.form, strings=True)
        bodies = Bodies(tags, others)
        tag = re.compile("|".join(re.escape(tag) for tag in (self.separator, self.closing, *others)))

        def read(source: SourceText, start: int) -> Block:
            text = source.text
            mark = tag.search(text, start)
            if mark is None:
                return Block(len(text), (cut_call(text[start:], self.form),), cut=True)
            if mark.group() != self.separator:
                return tags.broken_call(source, start, f"it has no {self.separator}")
            head = self.head(source, start, mark.start(), mark.end())
            if head is None:
                return tags.broken_call(source, start, "it names no tool")
            if is_empty(text, head.arguments, self.closing):
                end = text.index(self.closing, head.arguments) + len(self.closing)
                return Block(end, (call_with(head.name, {}, "", self.form)._replace(id=head.id),))
            body = bodies.read(source, start, head.arguments)
            whole = text[start : body.end].removesuffix(self.closing)
            call = call_with(head.name, body.value, whole, self.form)
            return body.block(call if call.error else call._replace(id=head.id))

        return read
