"""What a person sees of a run, on a terminal and elsewhere."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from hermes_agent.models.endpoint import EndpointStatus
from hermes_batch.display import RunDisplay, show_results
from hermes_batch.record import Record
from hermes_batch.result import BatchResult


def record(name: str, solved: bool | None, errors: tuple[dict[str, Any], ...] = (), **more: Any) -> Record:
    word = "unscored" if solved is None else "solved" if solved else "unsolved"
    fields = {"prompt_index": 0, "id": name, "solved": word, "trainable": solved is not None, "tool_calls": 2}
    fields |= {"seconds": 1.25, "isolation": "uid", "finish": "answered", "cause": "policy", "turns": 3}
    return cast("Record", {**fields, "errors": json.dumps(errors), **more})


def shown(terminal: bool, *records: Record, total: int) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100, color_system=None)
    result = BatchResult(Path("out"), total)
    with RunDisplay(console) as display:
        display.show_start(result)
        for each in records:
            result.tally.add(each)
            display.show_record(result, each)
    show_results(console, [*records], 7.5, total)
    return stream.getvalue()


def test_plain_lines_where_there_is_no_terminal() -> None:
    text = shown(False, record("a", True), record("b", False), record("c", None, isolation=""), total=5)
    assert "\x1b" not in text
    assert "\r" not in text
    lines = text.splitlines()
    assert re.fullmatch(r"\[1/5\] +solved +a +2 calls +1\.2 s", lines[0])
    assert lines[2].split()[:3] == ["[3/5]", "unscored", "c"]
    sums = "1 of 3 solved, 1 not scored (answered: policy), 6 tool calls, 7.5 s, isolation uid, 2 of 5 not done"
    assert lines[-1] == sums


AWAY = EndpointStatus(away_s=12.4, reason="HTTP 503: \x1b[31msleeping", waiting=3)


def endpoint_shown(terminal: bool) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=160, color_system=None)
    with RunDisplay(console) as display:
        display.show_start(BatchResult(Path("out"), 5))
        for status in (EndpointStatus(rate=2.5, waiting=7), AWAY, AWAY, EndpointStatus()):
            display.show_endpoint(status)
            if terminal:
                display._progress.refresh()  # type: ignore[union-attr]
    return stream.getvalue()


def test_plain_lines_leave_an_outage_to_the_log() -> None:
    assert endpoint_shown(False) == ""


def test_the_bar_says_what_it_waits_for() -> None:
    text = endpoint_shown(True)
    assert "2.5 requests/s, 7 waiting" in text
    assert "waiting for the endpoint, which completes no requests: HTTP 503: ␛[31msleeping (for 12 s)" in text


def error(kind: str, message: str, where: str = "infra") -> dict[str, Any]:
    return {"turn": 1, "where": where, "kind": kind, "message": message}


def test_reason_of_an_unscored_prompt_is_told_as_it_ends_in_the_table_and_in_the_sums() -> None:
    tool = error("timeout", "a tool call", "tool")
    text = shown(
        False,
        record("solved", True, errors=(error("AcquireTimeout", "of no interest"),)),
        record("died", None, errors=(error("SandboxDied", "out of\n\x1b[31mmemory"), tool)),
        record("gone", None, errors=(error("SandboxDied", "removed"),)),
        record("deaf", None, errors=(tool, error("ModelError", "no connection", "model"))),
        record("off", None, finish="cancelled", cause="cancelled"),
        total=5,
    )
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1] == "[2/5] unscored died 2 calls 1.2 s SandboxDied: out of ␛[31mmemory"
    table = lines[lines.index("prompt not scored because") + 1 : -1]
    assert table == [
        "died SandboxDied: out of ␛[31mmemory",
        "gone SandboxDied: removed",
        "deaf ModelError: no connection",
        "off cancelled",
    ]
    told = "4 not scored (2 SandboxDied: out of ␛[31mmemory; 1 ModelError: no connection; 1 cancelled)"
    assert told in lines[-1]
    assert "of no interest" not in text
    assert "not scored" not in shown(False, record("a", True), total=1)


def test_progress_bar_on_a_terminal() -> None:
    text = shown(True, record("a", True), total=2)
    assert "1 solved" in text
    assert "1/2" in text


@pytest.mark.parametrize("terminal", [False, True])
def test_names_are_text_and_nothing_else(terminal: bool) -> None:
    text = shown(terminal, record("[red]x[/] \x1b]0;t\x07\n\\", True), total=1)
    assert "[red]x[/] ␛]0;t␇ \\" in text
    assert "\x1b]0" not in text
