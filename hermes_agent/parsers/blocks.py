"""What a family reads at one place of a text: calls, or what was meant as one."""

from __future__ import annotations

from typing import NamedTuple


class ParsedCall(NamedTuple):
    """One call, or with `error` what was meant as one; `arguments` then holds what the model wrote."""

    name: str
    arguments: str
    id: str = ""
    error: str | None = None


class Block(NamedTuple):
    """What a family reads at a mark, and where the text goes on. Without calls it is text like any other. `begun` says
    of a broken call that it has a name and a parameter: its tag was not only named in prose.
    """

    end: int
    calls: tuple[ParsedCall, ...] = ()
    cut: bool = False
    begun: bool = False


def broken_call(text: str, why: str, form: str) -> ParsedCall:
    """What was meant as a call and is none."""
    return ParsedCall("", text.strip(), "", f"This tool call was not understood: {why}. Write {form}")


def cut_call(text: str, form: str) -> ParsedCall:
    """A call that the token limit cut."""
    error = f"This tool call was cut off before its end. Write a shorter one: {form}"
    return ParsedCall("", text.strip(), "", error)
