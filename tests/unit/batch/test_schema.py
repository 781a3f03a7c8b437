"""Records as Arrow tables and as a Parquet file: one type for each column, whatever a record has in it."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import datasets  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from hermes_agent import (
    AgentLoop,
    Completion,
    CompletionUsage,
    Message,
    RolloutResult,
    ScriptedModel,
    Timings,
    TokenUsage,
    ToolCall,
)
from hermes_agent.parsers.json_text import dump
from hermes_batch import Record, load, to_openai_messages
from hermes_batch.columns import JSON_COLUMNS
from hermes_batch.fixed_messages import to_fixed_message, to_openai_message
from hermes_batch.parquet import COLUMNS_VERSION, PARQUET, update_parquet, write_parquet
from hermes_batch.record import make_record
from hermes_batch.schema import make_batches, record_schema
from hermes_batch.task import Task
from hermes_batch.units import Unit
from hermes_exec.errors import ConfigError, ExecError
from tests.unit.agent.toolboxes import FunctionTools, echo
from tests.unit.batch.test_columns import OLD

pytestmark = pytest.mark.anyio
TASK = Task(index=3, place="line 4", prompt="go", id="x")
HUGE = '{"x": 123456789012345678901234567890, "y": 1e999}'
SCHEMA = {"name": "late", "parameters": {"type": "object", "properties": {"deep": {"anyOf": [{"type": "null"}, {}]}}}}


async def odd_record() -> Record:
    """A record of an episode with huge numbers in its arguments and half of a surrogate pair in a text."""
    usage = TokenUsage(9, 4, 1, 0.5, 2, 3)
    steps: list[Completion | str] = [Completion("", (ToolCall("c1", "do", HUGE),), "hm", usage=usage), "\ud83d done"]
    loop = AgentLoop(ScriptedModel(steps), FunctionTools(echo), sampling={"seed": 2, "filter": echo})
    result = RolloutResult(await loop.run("go"), seconds=1.5, timings=Timings(0.1, 0.2, 0.3, 0.4, 0.5))
    return make_record(Unit(TASK), [], result, model="m", toolsets=["terminal"], backend="local", image="").record


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    """A run whose last records have other tools, images and surrogates than the many before."""
    result = RolloutResult(None)
    empty = make_record(Unit(TASK), [], result, model="", toolsets=[], backend="local", image="").record
    odd = await odd_record()
    image = {"type": "image_url", "image_url": {"url": "screenshots/0-1.png"}}
    picture: list[Message] = [{"role": "user", "content": [{"type": "text", "text": "look"}, image]}]
    late = {
        **odd,
        "tools": dump([{"type": "function", "function": SCHEMA}]),
        "messages": dump(picture),
        "reward": "0.5",
    }
    write(tmp_path / "a", [*[empty] * 3000, odd, late])
    return tmp_path / "a"


def write(out: Path, records: list[Any]) -> None:
    out.mkdir(exist_ok=True)
    with (out / "trajectories.jsonl").open("wb") as file:
        for index, record in enumerate(records):
            line = json.dumps({**record, "prompt_index": index}, ensure_ascii=False)
            file.write(line.encode("utf-8", "replace") + b"\n")


def check_rows(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == 3002
    assert (rows[0]["messages"], rows[0]["usage"], rows[0]["reward"], rows[0]["tools"]) == ([], [], None, "[]")
    odd, late = rows[3000:]
    assert odd["messages"][1]["tool_calls"] == [{"id": "c1", "name": "do", "arguments": HUGE}]
    assert (odd["messages"][1]["reasoning"], odd["messages"][1]["extra"]) == ("hm", "")
    assert odd["messages"][3]["content"] == "\ufffd done"
    assert (odd["usage"][0]["cached_tokens"], odd["usage"][0]["cost"], odd["usage"][1]["prompt_tokens"]) == (3, 0.5, 0)
    assert odd["timings"] == {"queue_s": 0.1, "setup_s": 0.2, "model_s": 0.3, "tools_s": 0.4, "check_s": 0.5}
    assert json.loads(odd["sampling"])["seed"] == 2
    assert "function echo" in json.loads(odd["sampling"])["filter"]
    assert json.loads(late["tools"])[0]["function"] == SCHEMA
    assert late["messages"][0]["content"] == "look"
    assert "screenshots/0-1.png" in late["messages"][0]["extra"]
    assert (late["reward"], late["calls"][0]["error_kind"], late["calls"][0]["ok"]) == (0.5, None, True)


async def test_load_returns_typed_columns(run: Path) -> None:
    table = load(run)
    assert table.schema.equals(record_schema())
    assert table.column_names[:4] == ["group", "sample", "prompt_index", "id"]
    assert set(table.column_names) == set(Record.__annotations__)
    check_rows(table.to_pylist())
    assert load([run, str(run)]).num_rows == 2 * table.num_rows
    assert load([]).schema.equals(record_schema())


async def test_parquet_file_loads_with_datasets_and_pyarrow(run: Path, tmp_path: Path) -> None:
    path = write_parquet(run)
    assert path == run / PARQUET
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    check_rows(pq.read_table(path).to_pylist())
    check_rows([*datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "c"))])
    assert load(run).equals(pq.read_table(path).replace_schema_metadata(None))


async def test_parquet_file_is_made_again_only_after_a_change(run: Path) -> None:
    path = write_parquet(run)
    assert path is not None
    first = path.stat()
    write_parquet(run)
    assert path.stat().st_ino == first.st_ino
    with (run / "trajectories.jsonl").open("a") as file:
        file.write((run / "trajectories.jsonl").read_text().splitlines()[0] + "\n")
    assert load(run).num_rows == 3003
    write_parquet(run)
    assert pq.read_table(path).num_rows == 3003


async def test_damaged_parquet_file_is_made_again(run: Path) -> None:
    path = write_parquet(run)
    assert path is not None
    for content in (b"", path.read_bytes()[:-1], path.read_bytes().replace(b"hermes_batch.source", b"x" * 19)):
        path.write_bytes(content)
        assert load(run).num_rows == 3002
        write_parquet(run)
        assert pq.read_table(path).num_rows == 3002


async def test_current_parquet_file_is_recognized_without_pyarrow(run: Path) -> None:
    write_parquet(run)
    code = "import sys; from hermes_batch import parquet; parquet.write_parquet(parquet.Path('.'))"
    code += "; print('pyarrow' in sys.modules)"
    done = await anyio.run_process([sys.executable, "-c", code], cwd=run)
    assert done.stdout.strip() == b"False"


def test_columns_version_belongs_to_the_columns() -> None:
    columns = repr([(field.name, str(field.type)) for field in record_schema()])
    digest = hashlib.sha256(columns.encode()).hexdigest()[:16]
    assert (COLUMNS_VERSION, digest) == (3, "2c2caafd3eb2b47e"), "increase COLUMNS_VERSION when the columns change"


async def test_cancelled_update_leaves_no_parquet_file(run: Path) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await update_parquet(run)
    with anyio.move_on_after(0.01) as scope:
        await update_parquet(run)
    assert scope.cancelled_caught
    assert os.listdir(run) == ["trajectories.jsonl"]
    await update_parquet(run)
    assert pq.read_table(run / PARQUET).num_rows == 3002


async def test_parquet_file_that_cannot_be_written_leaves_nothing(run: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(ExecError, match=r"cannot write to .*File too large"):
            write_parquet(run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(run) == ["trajectories.jsonl"]


async def test_files_of_runs_load_together(run: Path, tmp_path: Path) -> None:
    """The second run has only empty records, whose lists would have no type in JSON."""
    empty = make_record(Unit(TASK), [], RolloutResult(None), model="", toolsets=[], backend="", image="").record
    write(tmp_path / "b", [empty] * 3)
    files = [str(write_parquet(each)) for each in (tmp_path / "b", run)]
    loaded = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert [message["role"] for message in loaded[3003]["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert load([tmp_path / "b", run]).num_rows == len(loaded) == 3005


def test_record_of_an_earlier_version_is_loaded_with_the_columns_of_today(tmp_path: Path) -> None:
    (tmp_path / "trajectories.jsonl").write_text(json.dumps(OLD) + "\n")
    (row,) = load(tmp_path).to_pylist()
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert (row["usage"], row["cost"], row["timings"]["queue_s"], row["version"]) == ([], 0.0, 0.0, "")


@pytest.mark.parametrize(
    ("statement", "outcome"),
    [
        ("load('.')", "ConfigError tables of records need pyarrow: pip install 'hermes-exec[batch]'"),
        ("parquet.write_parquet(Path('.'))", "None"),
    ],
)
def test_tables_without_pyarrow(statement: str, outcome: str, tmp_path: Path) -> None:
    (tmp_path / "trajectories.jsonl").touch()
    code = f"""
import sys
sys.modules["pyarrow"] = None
from pathlib import Path
from hermes_batch import load, parquet
try:
    print({statement})
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == outcome
    assert os.listdir(tmp_path) == ["trajectories.jsonl"]


def test_directory_without_trajectories_cannot_be_loaded(tmp_path: Path) -> None:
    for call in (load, write_parquet):
        with pytest.raises(ConfigError, match=r"has no trajectories\.jsonl"):
            call(tmp_path)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": ""},
        {"role": "user", "content": "half \ud83d"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "content": "a", "reasoning_content": "b", "reasoning_details": [{"text": "b"}]},
        {"role": "tool", "content": "{}", "tool_call_id": "c1", "name": "do"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "do", "arguments": HUGE},
                    "extra_content": {"google": {"thought_signature": "s"}},
                },
                {"id": "c2", "type": "function", "function": {"name": "do", "arguments": {"x": 1}}},
            ],
        },
    ],
)
def test_message_with_fixed_fields_becomes_the_same_message_again(message: Message) -> None:
    fixed = to_fixed_message(message)
    schema = record_schema().field("messages").type.value_type
    (stored,) = pa.array([fixed], schema).to_pylist()
    again = to_openai_message(stored)
    assert {name: again.get(name) or None for name in message} == {
        name: value or None for name, value in message.items()
    }
    assert again.keys() - message.keys() <= {"content"}


def test_values_of_another_type_are_converted() -> None:
    row = {"messages": "nonsense", "id": 5, "turns": 1 << 70, "cost": "x", "usage": '{"a": 1}', "check": None}
    (batch,) = make_batches([row])
    (made,) = batch.to_pylist()
    assert (made["messages"], made["id"], made["turns"], made["cost"], made["usage"]) == (
        [],
        "5",
        (1 << 63) - 1,
        0.0,
        [],
    )
    assert made["check"] == {"exit_code": 0, "timed_out": False, "output": ""}


def test_records_are_converted_in_batches_of_bounded_size() -> None:
    def records() -> Iterator[dict[str, Any]]:
        for _ in range(40):
            yield {"messages": dump([{"role": "user", "content": "x" * (1 << 20)}])}

    sizes = [batch.num_rows for batch in make_batches(records())]
    assert (sum(sizes), max(sizes)) == (40, 8)
    assert [batch.num_rows for batch in make_batches({} for _ in range(2500))] == [1000, 1000, 500]


async def test_record_columns_that_are_json_text_are_typed_or_text(run: Path) -> None:
    types = {field.name: field.type for field in record_schema()}
    assert {name for name in JSON_COLUMNS if types[name] == pa.string()} == {
        *("tools", "tool_stats", "tool_error_counts", "task_metadata", "sampling", "reward_info", "tokens")
    }


async def test_conversation_of_a_loaded_row_in_openai_form(run: Path) -> None:
    row = load(run).slice(3000, 1).to_pylist()[0]
    messages = to_openai_messages(row["messages"])
    assert messages[1]["tool_calls"][0]["function"] == {"name": "do", "arguments": HUGE}
    assert CompletionUsage(TokenUsage(9, 4, 1, 0.5, 2, 3), "stop").finish_reason == row["usage"][0]["finish_reason"]
