"""Rows that were written before messages were kept: they are read in the columns of today, and written so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes_batch import Record, read_records, write_report
from hermes_batch.columns import JSON_COLUMNS
from hermes_batch.tally import outcome, reason
from hermes_batch.trajectories import Trajectories
from tests.support.report_page import read_report

CALL = '<tool_call>\n{"name": "terminal", "arguments": {"command": "ls"}}\n</tool_call>'
RESPONSE = '<tool_response>\n{"tool_call_id": "c1", "name": "terminal", "content": {"output": "a"}}\n</tool_response>'
OLD: dict[str, Any] = {
    "completed": False,
    "partial": True,
    "api_calls": 2,
    "toolsets_used": ["terminal"],
    "turns": 2,
    "tool_calls": 1,
    "prompt_tokens": 1,
    "completion_tokens": 1,
    "seconds": 1.5,
    "backend": "local",
    "image": "",
    "isolation": "uid",
    "metadata": {"batch_num": 0, "timestamp": "", "model": "m"},
    "sandbox": "s",
    "task_digest": "d",
    "prompt_index": 0,
    "conversations": [
        {"from": "system", "value": "be brief"},
        {"from": "human", "value": "list"},
        {"from": "gpt", "value": f"<think>\nhm\n</think>\nok\n{CALL}"},
        {"from": "tool", "value": RESPONSE},
        {"from": "gpt", "value": "<think>\n</think>\ndone"},
    ],
    "tool_stats": {"terminal": {"count": 1, "success": 1, "failure": 0}},
    "tool_error_counts": {"terminal": 0},
    "id": "old",
    "finish": "infra",
    "cause": "infra",
    "trainable": False,
    "solved": None,
    "check": {"exit_code": None, "timed_out": False, "output": ""},
    "unknown_tools": [],
    "errors": [{"turn": 1, "where": "infra", "kind": "SandboxDied", "message": "gone"}],
    "screenshots": [{"tool_call_id": "c1", "path": "screenshots/0-1.png"}],
}


def write(directory: Path, *rows: dict[str, Any]) -> None:
    (directory / "trajectories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_old_rows_are_read_in_the_columns_of_today(tmp_path: Path) -> None:
    write(tmp_path, OLD)
    (row,) = read_records(tmp_path)
    assert row.keys() == Record.__annotations__.keys()
    assert {type(row[name]) for name in JSON_COLUMNS} == {str}
    assert (row["solved"], row["check"]["exit_code"], row["exportable"]) == ("unscored", -1, False)
    assert row["export_problem"]
    call = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}}
    assert json.loads(row["messages"]) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "list"},
        {"role": "assistant", "content": "ok", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "terminal", "content": '{"output": "a"}'},
        {"role": "assistant", "content": "done"},
    ]
    assert (outcome(row), str(reason(row))) == ("unscored", "SandboxDied: gone")
    page = read_report(write_report(tmp_path)).text
    for text in ("$ ls", "Thinking", "SandboxDied", "screenshots/0-1.png is missing"):
        assert text in page


@pytest.mark.parametrize(
    ("solved", "trainable", "word"),
    [(True, True, "solved"), (False, True, "unsolved"), (None, True, "unchecked"), (None, False, "unscored")],
)
def test_verdict_of_an_old_row_is_a_word(tmp_path: Path, solved: bool | None, trainable: bool, word: str) -> None:
    write(tmp_path, {**OLD, "solved": solved, "trainable": trainable})
    assert [row["solved"] for row in read_records(tmp_path)] == [word]


@pytest.mark.parametrize(("solved", "reward"), [(True, "1.0"), (False, "0.0"), (None, "null")])
def test_old_row_has_a_group_and_a_reward(tmp_path: Path, solved: bool | None, reward: str) -> None:
    write(tmp_path, *({**OLD, "solved": solved, "trainable": True, "prompt_index": n} for n in range(2)))
    assert [(row["group"], row["sample"], row["reward"]) for row in read_records(tmp_path)] == [
        ("d-0", 0, reward),
        ("d-1", 0, reward),
    ]


def test_resumed_run_writes_old_rows_in_the_columns_of_today(tmp_path: Path) -> None:
    write(tmp_path, OLD)
    (upgraded,) = read_records(tmp_path)
    with Trajectories.reopen(tmp_path, lambda rows: dict.fromkeys(row["offset"] for row in rows if row["trainable"])):
        pass
    assert [json.loads(line) for line in (tmp_path / "trajectories.jsonl").read_text().splitlines()] == [upgraded]


def test_messages_of_another_program_are_not_overwritten(tmp_path: Path) -> None:
    message = {"role": "user", "content": "<tool_call>"}
    write(tmp_path, {**OLD, "messages": [message], "errors": None})
    (row,) = read_records(tmp_path)
    assert (json.loads(row["messages"]), row["errors"]) == ([message], "[]")
