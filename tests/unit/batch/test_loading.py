"""trajectories.jsonl loads with `datasets` and `pyarrow`, whatever a record far behind the others has in it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import datasets  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.json  # type: ignore[import-untyped]
import pytest

from hermes_agent import AgentLoop, Completion, EpisodeError, Message, RolloutResult, ScriptedModel, Verdict
from hermes_agent.messages import TokenUsage, TurnTokens
from hermes_agent.models.scripted import call
from hermes_batch.columns import JSON_COLUMNS
from hermes_batch.record import Record, make_record
from hermes_batch.task import Task
from hermes_batch.units import Unit
from hermes_exec.errors import ErrorCause
from hermes_exec.tools import ToolResult
from tests.unit.agent.toolboxes import FunctionTools, result

pytestmark = pytest.mark.anyio
RECORDS = 10_000
TOKENS = TurnTokens((1, 2), (3,), (-0.5,))
ASK: list[Message] = [{"role": "user", "content": "go"}]


async def picture(arguments: dict[str, Any]) -> ToolResult:
    return replace(result('{"error": "no"}', ok=False, error_kind="exit"), images=(b"png",), shows_images=True)


def nothing() -> Record:
    """A record in which every column is as empty as can be."""
    outcome = RolloutResult(None, cause=ErrorCause.INFRA)
    task = Task(index=0, place="line 1", prompt="go")
    return make_record(Unit(task), ASK, outcome, model="", toolsets=["terminal"], backend="local", image="").record


async def everything() -> Record:
    """A record in which every column has something."""
    calls = (call("do", {"x": 1}), call("ghost", {}))
    asked = Completion("<think>", calls, "hm", usage=TokenUsage(1, 2, 1, 0.5), tokens=TOKENS)
    episode = await AgentLoop(ScriptedModel([asked, Completion("done", tokens=TOKENS)]), FunctionTools(picture)).run(
        ASK
    )
    episode = replace(episode, errors=(EpisodeError(1, "tool", "exit", "no"),))
    verdict = Verdict(1.0, solved=True, exit_code=0, output="2024-01-01", info={"n": 1})
    outcome = RolloutResult(episode, verdict, cause=ErrorCause.POLICY, isolation="uid", sandbox="s", seconds=1.5)
    outcome = replace(outcome, started=datetime.now(UTC), ended=datetime.now(UTC))
    task = Task(index=0, place="line 1", prompt="go", id="x")
    made = make_record(Unit(task), ASK, outcome, model="m", toolsets=["terminal"], backend="local", image="i").record
    made["task_metadata"] = '{"source": ["a", null]}'
    made["artifacts"] = '["artifacts/x-0/a.txt"]'
    return made


@pytest.fixture
async def runs(tmp_path: Path) -> list[str]:
    """Files of two runs: in the first, only the last of many records has anything in it, in the second the first."""
    empty, full = nothing(), await everything()
    values: dict[str, Any] = {**empty}
    assert {name for name in JSON_COLUMNS if values[name] not in ("[]", "{}", "null")} == {"messages"}
    values = {**full}
    assert {name for name in JSON_COLUMNS if values[name] in ("[]", "{}")} == set()
    return [
        write(tmp_path / "a.jsonl", [*[empty] * (RECORDS - 1), full]),
        write(tmp_path / "b.jsonl", [full, *[empty] * 10]),
    ]


def write(path: Path, records: Iterable[Record]) -> str:
    with path.open("w", encoding="utf-8") as file:
        for index, record in enumerate(records):
            file.write(json.dumps({**record, "prompt_index": index}, ensure_ascii=False) + "\n")
    return str(path)


def check(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == RECORDS + 11
    for row in (rows[RECORDS - 1], rows[RECORDS]):
        errors = json.loads(row["errors"])
        assert errors == [{"turn": 1, "where": "tool", "kind": "exit", "message": "no"}]
        assert (row["solved"], row["check"]["exit_code"], row["check"]["output"]) == ("solved", 0, "2024-01-01")
        assert json.loads(row["unknown_tools"]) == ["ghost"]
        assert json.loads(row["messages"])[1]["tool_calls"][0]["function"]["name"] == "do"
        assert row["export_problem"]
        assert json.loads(row["usage"])[0]["cost"] == row["cost"] == 0.5
        assert datetime.fromisoformat(str(row["started"])) <= datetime.fromisoformat(str(row["ended"]))
    assert (rows[0]["solved"], rows[0]["check"]["exit_code"], rows[0]["errors"]) == ("unscored", -1, "[]")


@pytest.mark.whole
async def test_datasets_loads_two_runs(runs: list[str], tmp_path: Path) -> None:
    load = partial(datasets.load_dataset, "json", split="train", cache_dir=str(tmp_path / "cache"))
    loaded = load(data_files=runs)
    assert {str(loaded.features[name]) for name in JSON_COLUMNS} == {"Value('string')"}
    check([*loaded])
    assert load(data_files=runs[::-1]).features == loaded.features


async def test_pyarrow_loads_two_runs(runs: list[str]) -> None:
    tables = [pyarrow.json.read_json(path) for path in runs]
    assert tables[0].schema == tables[1].schema
    check(pa.concat_tables(tables).to_pylist())
