"""Each format of `batch export` is read back by the programs that it is for."""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import anyio
import datasets  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam
from pydantic import TypeAdapter

from hermes_agent.trajectories.sharegpt_reader import read_sharegpt
from hermes_batch import export_records, to_openai_messages
from hermes_batch import load as load_table
from hermes_batch.schema import record_schema
from tests.unit.batch.exporting import HUGE, PNG, make_row, read_lines, write_run

pytestmark = pytest.mark.anyio
KINDS = ("plain", "short", "failed", "image", "huge", "endless", "broken", "cut")
MESSAGES = TypeAdapter(list[ChatCompletionMessageParam])
TOOLS = TypeAdapter(list[ChatCompletionFunctionToolParam])
LATE = 30_000
"""Records before the one with another schema: more than the first piece that `datasets` reads."""


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    rows = [await make_row(kind, prompt_index=at, id=kind, group=f"{at:032x}") for at, kind in enumerate(KINDS)]
    return write_run(tmp_path / "run", rows)


def load(out: Path, cache: Path) -> datasets.DatasetDict:
    return datasets.load_dataset(str(out), cache_dir=str(cache / "cache"))


def read_text(path: Path) -> str:
    return str(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else path.read_text("utf-8")


def roles(messages: list[dict[str, Any]]) -> list[str]:
    return [message["role"] for message in messages]


def reasons(out: Path) -> dict[str, str]:
    return {line["id"]: f"{line['reason']}: {line['detail']}" for line in read_lines(out / "left_out.jsonl")}


async def test_openai_lines_are_messages_of_the_openai_package(run: Path, tmp_path: Path) -> None:
    export_records(run, to="openai", out=tmp_path / "out")
    lines = read_lines(tmp_path / "out" / "train.jsonl")
    assert len(lines) == 7
    for line in lines:
        assert set(line) == {"messages", "tools"}
        TOOLS.validate_python(line["tools"])
        for message, known in zip(line["messages"], MESSAGES.validate_python(line["messages"]), strict=True):
            # The package reads the field of open models' thinking and the tool's name as unknown ones.
            assert set(message) - set(known) <= {"reasoning_content", "name"}
            if message["role"] == "assistant":
                list(known.get("tool_calls") or ())  # type: ignore[call-overload]
        assert line["messages"][-1]["role"] == "assistant"
    assert reasons(tmp_path / "out") == {"broken": "format: message 3 has a call that no parser understood"}


async def test_openai_lines_keep_texts_as_they_were_sent(run: Path, tmp_path: Path) -> None:
    export_records(run, to="openai", out=tmp_path / "out")
    plain, short, failed, image, huge, endless, cut = (
        line["messages"] for line in read_lines(tmp_path / "out" / "train.jsonl")
    )
    assert roles(plain) == ["system", "user", "assistant", "tool", "assistant"]
    assert plain[2]["reasoning_content"] == "Look first."
    assert json.loads(plain[2]["tool_calls"][0]["function"]["arguments"]) == {"x": 1.5, "y": [{"z": 1}]}
    assert json.loads(huge[2]["tool_calls"][0]["function"]["arguments"]) == {"x": 1, "y": HUGE}
    assert "né 🦀" in plain[3]["content"]
    assert plain[3]["tool_call_id"] == plain[2]["tool_calls"][0]["id"]
    assert short[-1] == {"role": "assistant", "content": "Done at once.", "reasoning_content": "Easy."}
    assert failed[-1]["content"] == "It failed."
    assert endless[2]["tool_calls"][0]["function"]["arguments"] == '{"x": 1e999}'
    assert endless[-1]["content"] == "Half of a pair: ?."
    # The last results of an episode without an answer train nothing.
    assert roles(cut) == ["system", "user", "assistant", "tool", "assistant"]
    assert roles(image) == ["system", "user", "assistant", "tool", "user", "assistant"]
    kind, data = image[4]["content"][1]["image_url"]["url"].split(",")
    assert (kind, b64decode(data)) == ("data:image/png;base64", PNG)


async def test_openai_data_set_loads_with_another_schema_in_a_late_record(tmp_path: Path) -> None:
    row, _ = await make_row("plain")
    other = [{"type": "function", "function": {"name": "t", "parameters": {"a": [1, {"b": "c"}], "d": None}}}]
    late, _ = await make_row("image", id="late", tools=json.dumps(other))
    images = {json.loads(late["screenshots"])[0]["path"]: PNG}
    run = write_run(tmp_path / "run", [*[row] * LATE, (late, images)])
    export_records(run, to="openai", out=tmp_path / "out")
    loaded = load(tmp_path / "out", tmp_path)["train"]
    assert len(loaded) == LATE + 1
    assert [loaded[0], loaded[LATE]] == [json.loads(line) for line in lines_at(tmp_path / "out", 0, LATE)]


def lines_at(out: Path, *places: int) -> list[str]:
    lines = (out / "train.jsonl").read_text("utf-8").splitlines()
    return [lines[place] for place in places]


async def test_sharegpt_turns_are_read_back_as_the_messages(run: Path, tmp_path: Path) -> None:
    export_records(run, to="sharegpt", out=tmp_path / "out")
    loaded = {row["id"]: row for row in load(tmp_path / "out", tmp_path)["train"]}
    assert sorted(loaded) == ["cut/0", "failed/0", "huge/0", "plain/0", "short/0"]
    for name, row in loaded.items():
        record = next(line for line in read_lines(run / "trajectories.jsonl") if line["id"] == name.split("/")[0])
        sent = json.loads(record["messages"])
        read = read_sharegpt(row["conversations"])
        assert [message["content"] for message in read] == [message["content"] for message in sent[: len(read)]]
        assert json.loads(row["tools"]) == json.loads(record["tools"])
    assert [turn["from"] for turn in loaded["cut/0"]["conversations"]] == ["system", "human", "gpt", "tool", "gpt"]
    why = reasons(tmp_path / "out")
    assert why["image"] == "format: message 4 (tool) has a part of the type image_url, and turns are text"
    assert "no parser" in why["broken"]


async def test_traces_load_with_the_loader_of_agent_traces(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("teich", reason="`datasets` reads agent traces with the package teich")
    export_records(run, to="hf-trace", out=tmp_path / "out")
    loaded = {
        json.loads(row["trace"].splitlines()[0])["name"]: row for row in load(tmp_path / "out", tmp_path)["train"]
    }
    assert sorted(loaded) == ["cut", "failed", "image", "plain", "short"]
    plain = loaded["plain"]
    assert (plain["harness"], plain["prompt"], plain["num_user_messages"]) == ("pi", "go", 1)
    assert plain["metadata"]["model"] == "m"
    # Newer versions of teich add the tools that the harness Pi always has.
    assert "do" in [tool["function"]["name"] for tool in plain["tools"]]
    system, user, called, answered, done = plain["messages"]
    assert (system["content"], user["content"], done["content"]) == ("Be brief.", "go", "Done.")
    assert called["reasoning_content"] == "Look first."
    assert called["tool_calls"][0]["function"] == {"name": "do", "arguments": {"x": 1.5, "y": [{"z": 1}]}}
    assert answered["tool_call_id"] == called["tool_calls"][0]["id"]
    assert "né 🦀" in answered["content"]
    assert loaded["failed"]["messages"][3]["is_error"] is True
    assert loaded["short"]["num_tool_calls"] == 0
    assert all("more than 64 bits" in reasons(tmp_path / "out")[name] for name in ("huge", "endless"))


async def test_trace_files_begin_with_their_session_and_hold_images(run: Path, tmp_path: Path) -> None:
    export_records(run, to="hf-trace", out=tmp_path / "out")
    sessions = {lines[0]["name"]: lines for lines in map(read_lines, (tmp_path / "out").glob("train/*/*.jsonl"))}
    assert sorted(sessions) == ["cut", "failed", "image", "plain", "short"]
    for lines in sessions.values():
        assert (lines[0]["type"], lines[0]["harness"], lines[0]["version"]) == ("session", "hermes-exec", 3)
        assert [line["parentId"] for line in lines[1:]] == [None, *(line["id"] for line in lines[1:-1])]
    result = next(line["message"] for line in sessions["image"] if line.get("message", {}).get("role") == "toolResult")
    image = result["content"][1]
    assert (image["mimeType"], b64decode(image["data"])) == ("image/png", PNG)
    assert sessions["plain"][0]["metadata"]["task_metadata"] == {"source": "made"}


async def test_parquet_has_the_columns_and_types_of_load(run: Path, tmp_path: Path) -> None:
    result = export_records(run, to="parquet", out=tmp_path / "out", split={"train": 0.6})
    tables = [pq.read_table(tmp_path / "out" / f"{name}.parquet") for name in result.splits]
    assert [table.schema for table in tables] == [record_schema(), record_schema()]
    rows = {row["id"]: row for table in tables for row in table.to_pylist()}
    sent = {row["id"]: row for row in load_table(run).to_pylist()}
    assert {name: rows[name] for name in KINDS if name != "image"} == {n: sent[n] for n in KINDS if n != "image"}
    (path,) = {shot["path"] for shot in rows["image"]["screenshots"]}
    assert (tmp_path / "out" / path).read_bytes() == PNG
    result_of_call = to_openai_messages(rows["image"]["messages"])[3]
    assert result_of_call["content"][1]["image_url"]["url"] == path
    assert load(tmp_path / "out", tmp_path)["train"].num_rows == result.splits["train"]


async def test_parquet_without_pyarrow_names_the_extra(run: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from hermes_batch import export_records\n"
        f"export_records({str(run)!r}, to='parquet', out={str(tmp_path / 'out')!r})"
    )
    done = await anyio.run_process([sys.executable, "-c", code], check=False)
    assert b"tables of records need pyarrow: pip install 'hermes-exec[batch]'" in done.stderr
    assert not (tmp_path / "out").exists()


async def test_reasoning_is_left_out_of_every_format(tmp_path: Path) -> None:
    inline = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "<think>\nLook first.\n</think>\n\nDone."},
    ]
    rows = [await make_row("plain"), await make_row("short", messages=json.dumps(inline), group="b" * 32, id="inline")]
    run = write_run(tmp_path / "run", rows)
    for to in ("openai", "sharegpt", "atif", "hf-trace", "parquet"):
        for reasoning in (True, False):
            out = tmp_path / f"{to}-{reasoning}"
            export_records(run, to=to, out=out, reasoning=reasoning)
            files = [path for path in out.rglob("*") if path.is_file() and "train" in str(path.relative_to(out))]
            texts = [
                str(pq.read_table(each).to_pylist()) if to == "parquet" else each.read_text("utf-8") for each in files
            ]
            text = "".join(texts)
            assert ("Look first." in text) is reasoning, (to, reasoning)
            assert "Done." in text
