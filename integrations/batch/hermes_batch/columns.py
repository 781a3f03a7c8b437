"""Record columns that hold JSON text, and the conversion of rows of earlier versions to the current columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hermes_agent.parsers.json_text import dump
from hermes_agent.trajectories.sharegpt import ShareGPTTurn
from hermes_agent.trajectories.sharegpt_reader import read_sharegpt

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
    "usage": [],
    "tokens": [],
    "sampling": {},
    "artifacts": [],
    "reward": None,
    "reward_info": {},
}
_REWARDS = {"solved": 1.0, "unsolved": 0.0}
"""The rewards of checks, which were the only scores of earlier versions."""
JSON_COLUMNS = tuple(_EMPTY)
"""The columns that can be empty or have any structure. As text they have the same type in every record, for every
reader.
"""

WITHOUT_MESSAGES = "written without its messages"
"""The `export_problem` of rows whose messages are re-read from their conversation."""

_UNKNOWN: Mapping[str, Any] = {
    "reasoning_tokens": 0,
    "cached_tokens": 0,
    "cost": 0.0,
    "timings": {"queue_s": 0.0, "setup_s": 0.0, "model_s": 0.0, "tools_s": 0.0, "check_s": 0.0},
    "started": "",
    "ended": "",
    "compacted": False,
    "version": "",
    "program": "",
    "program_exit_code": -1,
    "program_output": "",
    "roots": 0,
    "sequences": 0,
}
"""The values of columns that earlier versions did not write."""


def decode_list(record: Mapping[str, Any], name: str) -> list[Any]:
    """Return the list in a column of `JSON_COLUMNS`, or an empty list if the record has none or no JSON."""
    try:
        value = json.loads(record[name])
    except (KeyError, TypeError, ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def upgrade_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of any version with the current columns and types.

    Rows without `messages` get messages that are re-read from their conversation. They are not exportable, because
    these may differ from the messages of the episode.
    """
    if all(isinstance(row.get(name), str) for name in (*JSON_COLUMNS, "solved", "group", "program_output")):
        return row
    turns = [turn for turn in row["conversations"] if isinstance(turn, dict)]
    conversation = [
        ShareGPTTurn({"from": str(turn.get("from", "")), "value": str(turn.get("value", ""))}) for turn in turns
    ]
    old: dict[str, Any] = {"attempts": 1, **_UNKNOWN}
    if "messages" not in row:
        old |= {
            "messages": read_sharegpt(conversation),
            "exportable": False,
            "export_problem": WITHOUT_MESSAGES,
        }
    if not isinstance(row.get("group"), str):
        old |= {"group": former_group(row), "sample": 0, "reward": _REWARDS.get(_verdict_word(row))}
    new = {**old, **row, "solved": _verdict_word(row), "check": _check(row.get("check"))}
    for name, empty in _EMPTY.items():
        value = new.get(name, empty)
        new[name] = value if isinstance(value, str) else dump(empty if value is None else value)
    return new


def former_group(row: Mapping[str, Any]) -> str:
    """Return the group of a row of a version without groups: the digest of its line, and the prompt's number."""
    return f"{row.get('task_digest', '')}-{row.get('prompt_index', 0)}"


def _verdict_word(row: Mapping[str, Any]) -> str:
    """Return the verdict as a word. Earlier versions wrote true, false or null."""
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
