"""The tags between which a model thinks.

Thinking is taken out where the text is gone through from mark to mark (`scan`), for every family alike, so that

- thinking between two calls is found, not only thinking before the first;
- a call is whole before thinking is looked for in what follows it: tags in its arguments are text of the arguments;
- a call inside of thinking is never looked at;
- tags in code, of the answer and of the thinking, are text (`quoting`);
- a closing tag without an opening one says that the chat template had opened it: all before it was thinking, also what
  looked like calls;
- thinking that is never closed reaches to a token that can only begin a call, else to the end of the text; what looks
  like a call in there is a problem of the answer (`problems`), for it cannot be known whether it is one.
"""

from __future__ import annotations

from typing import NamedTuple


class Thinking(NamedTuple):
    """An opening and a closing tag."""

    open: str
    close: str


THINK = Thinking("<think>", "</think>")
BRACKETS = Thinking("[THINK]", "[/THINK]")
