"""What results print: the end, the first lines of the output, and what is unusual."""

from __future__ import annotations

import pytest

from hermes_exec.errors import ChannelLost
from hermes_exec.results import KillReceipt, RunResult, SearchFile, SearchResult
from hermes_exec.tools.call.results import ToolResult


def test_run_result_repr_shows_exit_code_and_output_once() -> None:
    result = RunResult(0, stdout_bytes=b"hi\n", output_bytes=b"hi\n", stdout_total_bytes=3, request_id=5)
    assert repr(result) == str(result) == r"RunResult(exit_code=0, output='hi\n')"
    assert repr(RunResult(exit_code=1)) == "RunResult(exit_code=1)"
    assert repr(RunResult(2, stderr_bytes=b"no\xff")) == "RunResult(exit_code=2, output='no\ufffd')"


def test_run_result_repr_shows_two_lines() -> None:
    assert repr(RunResult(0, output_bytes=b"a\nb\nc\n")) == r"RunResult(exit_code=0, output='a\nb…')"
    long = repr(RunResult(0, output_bytes=b"x" * 1_000_000))
    assert long.endswith("xxx…')")
    assert len(long) < 200


def test_run_result_repr_shows_what_is_unusual() -> None:
    result = RunResult(
        exit_code=143,
        signal=15,
        timed_out=True,
        stdout_total_bytes=10,
        spill_path="/tmp/all",
        killed=KillReceipt(found=2, killed=1, left=1),
        state_lost="the shell was killed",
    )
    for part in (
        "signal=15",
        "timed_out=True",
        "truncated=True",
        "spill_path='/tmp/all'",
        "left=1",
        "state_lost='the s",
    ):
        assert part in repr(result)
    assert "oom_killed" not in repr(result)


def test_other_results_print_alike() -> None:
    found = SearchResult(files=(SearchFile("a", 3, 0.0),) * 500, total=1500, total_files=500, truncated=True)
    assert repr(found) == "SearchResult(total=1500, total_files=500, truncated=True)"
    answer = ToolResult("terminal", '{"output": "' + "x" * 5000, {}, True, None, 0.5, "call_1", images=(b"png" * 999,))
    assert repr(answer).startswith("ToolResult(name='terminal', ok=True, content='{\"output\": \"xxx")
    assert repr(answer).endswith("x…', images=1)")


@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        (None, None),
        ("exit_code", "command"),
        ("not_found", "command"),
        ("wrong_type", "call"),
        ("unknown_tool", "call"),
    ],
)
def test_tool_result_failure_tells_wrong_calls_from_failed_ones(kind: str | None, failure: str | None) -> None:
    assert ToolResult("terminal", "{}", {}, kind is None, kind, 0.0, "").failure == failure


def test_tool_result_of_a_lost_slot_has_error_and_advice() -> None:
    result = ToolResult.lost_slot("terminal", ChannelLost("the stream was lost"), "Call it again.")
    assert (result.ok, result.failure, result.data["error"]) == (False, "slot", "the stream was lost. Call it again.")
    assert result.content == '{"error": "the stream was lost. Call it again.", "error_kind": "slot_lost"}'
