"""`batch show`: selection, order and groups of records by the index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hermes_batch.cli import app
from hermes_batch.row_selection import RowSelection, group_rows
from hermes_batch.trajectories import read_rows
from hermes_exec.errors import ConfigError

LONG = "x" * 3000
RECORDS: list[dict[str, Any]] = [
    {"id": "a", "solved": "solved", "prompt_tokens": 100, "seconds": 3.0, "task_metadata": {"source": "web"}},
    {"id": "b", "solved": "unsolved", "prompt_tokens": 300, "seconds": 1.0, "task_metadata": {"source": "web"}},
    {"id": "c", "solved": "unscored", "cause": "infra", "trainable": False, "turns": 9, "task_metadata": {}},
    {"id": "d", "solved": "unchecked", "cost": 2.5, "task_metadata": {"source": "book", "long": LONG}},
]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    lines = []
    for index, record in enumerate(RECORDS):
        facts = {"prompt_index": index, "conversations": [], "finish": "answered", "cause": "policy", **record}
        lines.append({**facts, "group": str(index), "sample": 0, "tool_calls": 0})
    (tmp_path / "trajectories.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "run.json").write_text(json.dumps({"prompts": 5, "seconds": 9.0}))
    return tmp_path


def show(out: Path, *options: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["show", str(out), *options, "--json"], catch_exceptions=False)
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], "abcd"),
        (["--solved"], "a"),
        (["--unsolved"], "b"),
        (["--unscored"], "c"),
        (["--unchecked"], "d"),
        (["--solved", "--unsolved", "--sort", "tokens"], "ba"),
        (["--cause", "infra"], "c"),
        (["--sort", "seconds", "--limit", "1"], "a"),
        (["--sort", "turns", "-n", "1"], "c"),
        (["--sort", "cost", "-n", "1"], "d"),
        (["--unscored", "--cause", "policy"], ""),
    ],
)
def test_show_selects_and_sorts(out: Path, options: list[str], names: str) -> None:
    assert "".join(row["id"] for row in show(out, *options)) == names


def test_show_by_a_field_of_the_metadata(out: Path) -> None:
    groups = show(out, "--by", "task_metadata.source")
    assert [(group["value"], group["records"], group["solved"]) for group in groups] == [
        *(("web", 2, 1), ("(none)", 1, 0), ("book", 1, 0))
    ]
    assert groups[0]["estimates"]["pass@1"]["mean"] == 0.5
    assert [group["value"] for group in show(out, "--by", "cause", "--unscored")] == ["infra"]


def test_show_prints_selected_rows_and_the_totals_of_the_run(out: Path) -> None:
    done = CliRunner().invoke(app, ["show", str(out), "--unsolved"], catch_exceptions=False)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[1].startswith("b unsolved answered policy")
    assert lines[2] == "1 of 4 records selected; all:"
    assert lines[3].startswith("1 of 2 solved, 1 unchecked, 1 unscored (answered: infra)")
    assert lines[3].endswith("1 of 5 not done")
    groups = CliRunner().invoke(app, ["show", str(out), "--by", "task_metadata.source"], catch_exceptions=False).stdout
    assert groups.split()[:4] == ["task_metadata.source", "records", "solved", "share"]
    assert "web 2 1 of 2 50 % 0 0.500" in " ".join(groups.split())


@pytest.mark.parametrize(
    ("by", "message"),
    [("sources", "--by 'sources' is unknown"), ("task_metadata", "name a field"), ("task_metadata.", "name a field")],
)
def test_unknown_group_is_an_error(out: Path, by: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        group_rows(out, read_rows(out)[0], by)


@pytest.mark.parametrize(("name", "value"), [("sort", "token"), ("cause", "sandbox")])
def test_unknown_name_of_a_selection_is_an_error(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"--{name} '{value}' is unknown"):
        RowSelection(**{name: value})
