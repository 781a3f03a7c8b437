"""Calls of the form BEGIN head SEPARATOR json END, as DeepSeek V3 and Kimi K2 write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from hermes_agent.parsers.json_call import Bodies, call_with, is_empty
from hermes_agent.parsers.scan import Block, broken, cut_off
from hermes_agent.parsers.thinking import THINK
from hermes_agent.parsers.typed import Toolset


class Head(NamedTuple):
    """Whom a call is for, and where its arguments begin."""

    name: str
    arguments: int
    id: str = ""


HeadAt = Callable[[str, int, int, int], Head | None]
"""Reads the head: the text, where it begins, where the separator begins and where it ends."""


@dataclass(frozen=True)
class Headed:
    """The tags of one such format; `others` are tags that end a call which is not closed."""

    separator: str
    close: str
    others: tuple[str, ...]
    head: HeadAt
    form: str

    def reader(self) -> Callable[[str, int, Toolset], Block]:
        """Reads one call."""
        others = (*self.others, *THINK)
        bodies = Bodies(self.close, others)
        tag = re.compile("|".join(re.escape(tag) for tag in (self.separator, self.close, *others)))

        def read(text: str, start: int, _tools: Toolset) -> Block:
            mark = tag.search(text, start)
            if mark is None:
                return Block(len(text), (cut_off(text[start:], self.form),), cut=True)
            if mark.group() != self.separator:
                end = mark.end() if mark.group() == self.close else mark.start()
                return Block(end, (broken(text[start : mark.start()], f"it has no {self.separator}", self.form),))
            head = self.head(text, start, mark.start(), mark.end())
            begin = mark.end() if head is None else head.arguments
            if head is not None and is_empty(text, begin, self.close):
                end = text.index(self.close, begin) + len(self.close)
                return Block(end, (call_with(head.name, {}, "", self.form)._replace(id=head.id),))
            body = bodies.read(text, begin)
            whole = text[start : body.end].removesuffix(self.close)
            if head is None and not body.cut:
                return Block(body.end, (broken(whole, "it names no tool", self.form),))
            named = head or Head("", begin)
            found = call_with(named.name, body.value, whole, self.form)
            return body._replace(text=whole).block(found._replace(id=named.id) if not found.error else found, self.form)

        return read
