"""The columns of a record that are JSON text, and rows of earlier versions in the columns of today."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hermes_agent.parsers.json_text import dump
from hermes_agent.trajectories.rereading import read_sharegpt
from hermes_agent.trajectories.sharegpt import Turn

_EMPTY: Mapping[str, Any] = {
    "messages": [],
    "tools": [],
    "calls": [],
    "tool_stats": {},
    "tool_error_counts": {},
    "unknown_tools": [],
    "errors": [],
    "screenshots": [],
    "task_metadata": {},
}
JSON_COLUMNS = tuple(_EMPTY)
"""The columns that can be empty or of any form. As text they have one type whatever is in them, in every reader."""


def decode_list(record: Mapping[str, Any], name: str) -> list[Any]:
    """Return the list in a column of `JSON_COLUMNS`; an empty one where the record has none, or no JSON."""
    try:
        value = json.loads(record[name])
    except (KeyError, TypeError, ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def upgrade_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of any version with the columns and types of today.

    Rows that were written without `messages` get those that their conversation re-reads as. They are not exportable:
    it is not known whether these are the messages of the episode.
    """
    if all(isinstance(row.get(name), str) for name in (*JSON_COLUMNS, "solved")):
        return row
    turns = [turn for turn in row["conversations"] if isinstance(turn, dict)]
    conversation = [Turn({"from": str(turn.get("from", "")), "value": str(turn.get("value", ""))}) for turn in turns]
    old: dict[str, Any] = {"attempts": 1}
    if "messages" not in row:
        old |= {
            "messages": read_sharegpt(conversation),
            "exportable": False,
            "export_problem": "written without its messages",
        }
    new = {**old, **row, "solved": _verdict_word(row), "check": _check(row.get("check"))}
    for name, empty in _EMPTY.items():
        value = new.get(name, empty)
        new[name] = value if isinstance(value, str) else dump(empty if value is None else value)
    return new


def _verdict_word(row: Mapping[str, Any]) -> str:
    """The verdict as a word; earlier versions wrote true, false or null."""
    solved = row.get("solved")
    if isinstance(solved, str):
        return solved
    if not row.get("trainable", True):
        return "unscored"
    return "unchecked" if solved is None else "solved" if solved else "unsolved"


def _check(check: object) -> dict[str, Any]:
    values = check if isinstance(check, dict) else {}
    code = values.get("exit_code")
    return {
        "exit_code": code if isinstance(code, int) else -1,
        "timed_out": bool(values.get("timed_out")),
        "output": str(values.get("output") or ""),
    }
