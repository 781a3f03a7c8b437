"""The tags around a model's thinking.

The scanner (`scan`) removes thinking for every family alike while it goes through the text from mark to mark. So

- thinking between two calls is found, not only thinking before the first;
- a call is read completely before thinking is looked for after it: tags in its arguments are text of the arguments;
- a call inside of thinking is never read;
- tags in code, of the answer and of the thinking, are text (`quoting`);
- a closing tag without an opening one means that the chat template had opened the thinking: all text before it is
  thinking, including text that looks like calls;
- unclosed thinking reaches to a token that can only begin a call, else to the end of the text. Text in it that looks
  like a call is a problem of the answer (`problems`), because it may or may not be a call.
"""

from __future__ import annotations

from typing import NamedTuple


class Thinking(NamedTuple):
    """An opening and a closing tag."""

    open: str
    close: str


THINK = Thinking("<think>", "</think>")
BRACKETS = Thinking("[THINK]", "[/THINK]")
