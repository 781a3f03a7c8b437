"""What a person sees of a run that works, on a terminal and elsewhere."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from hermes_batch.record import Record
from hermes_batch.result import BatchResult
from hermes_batch.results_table import show_results
from hermes_batch.run_display import RunDisplay
from hermes_batch.status import EndpointFacts, RunStatus

NOON = datetime(2026, 1, 2, 12, 0, 5, tzinfo=UTC)


def record(name: str, solved: bool | None, errors: tuple[dict[str, Any], ...] = (), **more: Any) -> Record:
    word = "unscored" if solved is None else "solved" if solved else "unsolved"
    fields = {"prompt_index": 0, "id": name, "solved": word, "trainable": solved is not None, "tool_calls": 2}
    fields |= {"seconds": 1.25, "isolation": "uid", "finish": "answered", "cause": "policy", "turns": 3}
    return cast("Record", {**fields, "errors": json.dumps(errors), **more})


def show_run(terminal: bool, *records: Record, total: int) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120, color_system=None)
    result = BatchResult(Path("out"), total)
    with RunDisplay(console, lambda: NOON) as display:
        display.show_start(result)
        for each in records:
            result.tally.add(each)
            display.show_record(result, each)
    show_results(console, [*records], 7.5, total)
    return stream.getvalue()


def show_statuses(terminal: bool, *statuses: RunStatus) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=160, color_system=None)
    with RunDisplay(console, lambda: NOON) as display:
        for status in statuses:
            display.show_status(status)
            if display._live is not None:
                display._live.refresh()
    return stream.getvalue()


def test_program_that_failed_after_an_answer_is_shown() -> None:
    failed = record("a", False, program="mini-swe-agent", program_exit_code=3)
    slow = record("b", False, program="mini-swe-agent", program_exit_code=137, finish="deadline")
    text = show_run(False, failed, slow, record("c", True, program="mini-swe-agent", program_exit_code=0), total=3)
    assert text.count("the program ended with exit code") == 1
    assert "a       unsolved  answered, exit code 3" in text
    assert "1 of 3 solved, 1 program failed after an answer, 6 tool calls" in text


def test_plain_lines_have_a_clock_where_there_is_no_terminal() -> None:
    text = show_run(False, record("a", True), record("b", False), record("c", None, isolation=""), total=5)
    assert "\x1b" not in text
    assert "\r" not in text
    lines = text.splitlines()
    assert re.fullmatch(r"12:00:05 \[1/5\] +solved +a +2 calls +1\.2 s", lines[0])
    assert lines[2].split()[:4] == ["12:00:05", "[3/5]", "unscored", "c"]
    sums = "1 of 2 solved, 1 unscored (answered: policy), 6 tool calls, 7.5 s, isolation uid, 2 of 5 not done"
    assert lines[-1] == sums


def make_status(**more: Any) -> RunStatus:
    outcomes = {"solved": 218, "unsolved": 62, "unscored": 20, "unchecked": 0}
    facts: dict[str, Any] = {"total": 400, "records": 300, "outcomes": outcomes, "seconds": 720.0}
    facts |= {"rate": 0.205, "left_s": 487.0, "prompt_tokens": 1_234_567, "completion_tokens": 45_210, "cost": 1.234}
    facts |= {"workers": {"model": 40, "queue": 9, "tools": 12}, "sandboxes": {"ready": 4}, "hosts": {"a": 3, "b": 1}}
    return RunStatus.model_validate({**facts, **more})


def test_status_on_a_terminal() -> None:
    text = show_statuses(True, make_status())
    for words in (
        "300 of 400 done (75 %), 12.3 a minute, 8 min left",
        "218 of 280 solved, 20 unscored, 1.23M tokens read, 45.2k written, cost 1.23",
        "workers: 9 waiting for a slot, 40 waiting for the model, 12 in tools; sandboxes: 4 ready; hosts: a 3, b 1",
        "12 min",
    ):
        assert words in text


def test_display_moves_before_the_first_status() -> None:
    stream = io.StringIO()
    with RunDisplay(Console(file=stream, force_terminal=True, width=100, color_system=None)):
        pass
    assert "reading the prompts and starting the backend" in stream.getvalue()


def test_status_without_a_terminal_is_a_line_every_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 101.0, 129.0, 130.0, 131.0, 160.0])
    monkeypatch.setattr("hermes_batch.run_display.time.monotonic", lambda: next(times))
    lines = show_statuses(False, *[make_status()] * 6).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(
        "12:00:05 300 of 400 done (75 %), 12.3 a minute, 8 min left; 218 of 280 solved, 20 unscored"
    )


AWAY = EndpointFacts(away_s=12.4, reason="HTTP 503: \x1b[31msleeping", waiting=3)


def test_endpoint_is_shown_if_it_holds_requests_back() -> None:
    slow = EndpointFacts(rate=2.5, waiting=7)
    text = show_statuses(True, *(make_status(endpoint=endpoint) for endpoint in (slow, AWAY, AWAY)))
    assert "the endpoint allows 2.5 requests/s: 7 requests are held back" in text
    assert "waiting for the endpoint, which completes no requests: HTTP 503: ␛[31msleeping (for 12 s)" in text
    assert "endpoint" not in show_statuses(True, make_status(endpoint=EndpointFacts(in_flight=4)))


def error(kind: str, message: str, where: str = "infra") -> dict[str, Any]:
    return {"turn": 1, "where": where, "kind": kind, "message": message}


def test_reason_of_an_unscored_record_is_in_its_line_in_the_table_and_in_the_totals() -> None:
    tool = error("timeout", "a tool call", "tool")
    text = show_run(
        False,
        record("solved", True, errors=(error("AcquireTimeout", "of no interest"),)),
        record("died", None, errors=(error("SandboxDied", "out of\n\x1b[31mmemory"), tool)),
        record("gone", None, errors=(error("SandboxDied", "removed"),)),
        record("deaf", None, errors=(tool, error("ModelError", "no connection", "model"))),
        record("off", None, finish="cancelled", cause="cancelled"),
        total=5,
    )
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1] == "12:00:05 [2/5] unscored died 2 calls 1.2 s SandboxDied: out of ␛[31mmemory"
    table = lines[lines.index("prompt unscored because") + 1 : -1]
    assert table == [
        "died SandboxDied: out of ␛[31mmemory",
        "gone SandboxDied: removed",
        "deaf ModelError: no connection",
        "off cancelled",
    ]
    reasons = "1 of 1 solved, 4 unscored (2 SandboxDied: out of ␛[31mmemory; 1 ModelError: no connection; 1 cancelled)"
    assert reasons in lines[-1]
    assert "of no interest" not in text
    assert "unscored" not in show_run(False, record("a", True), total=1)


@pytest.mark.parametrize("terminal", [False, True])
def test_names_are_text_and_nothing_else(terminal: bool) -> None:
    text = show_run(terminal, record("[red]x[/] \x1b]0;t\x07\n\\", True), total=1)
    assert "[red]x[/] ␛]0;t␇ \\" in text
    assert "\x1b]0" not in text
