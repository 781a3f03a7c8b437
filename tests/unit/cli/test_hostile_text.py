"""What comes out of a sandbox reaches the terminal as text: no escape sequence, no mark that reorders it, no additional
line.
"""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_exec.cli.commands.trace import _word
from hermes_exec.cli.kit import output
from hermes_exec.cli.kit.ending import report
from hermes_exec.errors import ExecError

EVIL = (
    "a\x1b]0;title\x07\x1b[2J",  # by escape
    "b\x9b31mred\x85",  # the same as one character of eight bits, which xterm takes too
    "c\x7f\x08\x08over",
    "d\u202egnp.exe\u2069\u200f\u061c",  # shown from right to left
    "e\udcff\udc9b",  # what is no UTF-8, as Python reads it
    "f\U000e0041",
    "g:x: [bold]no style[/bold] [link=http://x]\\[/]",
)


def is_shown(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("evil", EVIL)
def test_messages_errors_and_tables_are_text(evil: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.say(f"begin {evil} end")
    report(ExecError(evil))
    output.table(("name",), [(evil,), (None,)], title="title")
    told = capsys.readouterr()
    assert is_shown(told.err)
    assert is_shown(told.out)
    assert told.err.splitlines()[0] == f"begin {output.printable(evil)} end"
    assert [line.rstrip() for line in told.out.splitlines()][2:] == [output.printable(evil), "-"]


@pytest.mark.parametrize("evil", EVIL)
def test_json_is_text_and_says_the_same(evil: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.emit_json({"stdout": f"{evil}\n", evil: 1})
    printed = capsys.readouterr().out
    assert is_shown(printed)
    assert json.loads(printed) == {"stdout": f"{evil}\n", evil: 1}


@given(st.text(max_size=20))
def test_a_name_is_one_line_and_printable(name: str) -> None:
    assert output.one_line(name).isprintable()
    assert is_shown(output.printable(name).replace("\t", ""))
    assert output.one_line(name) == name or not name.isprintable()


def test_two_names_do_not_look_alike_by_a_line_feed() -> None:
    assert output.one_line("a\nb\tc\r") == "a␊b␉c␍"
    assert _word("x\n1  forged") == "x␊1  forged"


def test_lines_of_the_log_are_text() -> None:
    record = logging.makeLogRecord({"msg": "sandbox %s died", "args": ("\x1b[2J\x9b",), "levelname": "WARNING"})
    assert is_shown(output.LogFormatter("%(levelname)s %(message)s").format(record))
