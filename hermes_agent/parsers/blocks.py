"""Blocks that a family reads at one place of a text: calls, or text that was meant as a call."""

from __future__ import annotations

from typing import NamedTuple


class ParsedCall(NamedTuple):
    """One call, or with `error` a text that was meant as one; `arguments` then holds the model's text."""

    name: str
    arguments: str
    id: str = ""
    error: str | None = None


class Block(NamedTuple):
    """The calls at a mark, and the position after them.

    Without calls it is text like any other. `begun` marks a broken call with a name and a parameter, whose tag was
    therefore not only named in prose.
    """

    end: int
    calls: tuple[ParsedCall, ...] = ()
    cut: bool = False
    begun: bool = False


def broken_call(text: str, why: str, form: str) -> ParsedCall:
    """Return a text that was meant as a call and is not a valid one."""
    return ParsedCall("", text.strip(), "", f"This tool call was not understood: {why}. Write {form}")


def cut_call(text: str, form: str) -> ParsedCall:
    """Return a call that the token limit cut."""
    error = f"This tool call was cut off before its end. Write a shorter one: {form}"
    return ParsedCall("", text.strip(), "", error)
