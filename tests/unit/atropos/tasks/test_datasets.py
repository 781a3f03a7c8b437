"""Rows of files and directories, and what is said when there are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes_atropos import datasets
from hermes_exec import ConfigError

ROWS = [{"a": 1, "b": "x"}, {"a": 2, "b": "é"}]


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import parquet

    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / "rows.jsonl").write_text(lines + "\n")
    (tmp_path / "lines.json").write_text(lines)
    (tmp_path / "list.json").write_text(json.dumps(ROWS))
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    for path in tmp_path.iterdir():
        assert datasets.load_dataset_rows(str(path), "train") == ROWS, path
    assert len(datasets.load_dataset_rows(str(tmp_path), "train")) == 8


def test_a_directory_has_splits(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train-00000-of-00002.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "data" / "train-00001-of-00002.jsonl").write_text('{"n": 2}\n')
    (tmp_path / "test.jsonl").write_text('{"n": 3}\n')
    assert [row["n"] for row in datasets.load_dataset_rows(str(tmp_path), "train")] == [1, 2]
    assert [row["n"] for row in datasets.load_dataset_rows(str(tmp_path), "test")] == [3]
    with pytest.raises(ConfigError, match="has no split 'dev'; it has test, train"):
        datasets.load_dataset_rows(str(tmp_path), "dev")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("rows.jsonl", '{"a": 1}\nno\n', "line 2 of .* is not JSON"),
        ("rows.jsonl", '{"a": 1}\n[2]\n', "row 2 of .* must be an object, not list"),
        ("rows.jsonl", "", "has no rows"),
        ("rows.json", "[1]", "row 1 of .* must be an object, not int"),
        ("rows.parquet", "no", "cannot be read"),
        ("rows.jsonl", b"\xff", "cannot be read"),
    ],
)
def test_a_bad_file_is_named(name: str, text: str | bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError, match=why):
        datasets.load_dataset_rows(str(tmp_path / name), "train")


@pytest.mark.parametrize("name", ["missing.jsonl", "./missing", "/no/such/directory"])
def test_a_missing_file_is_not_looked_for_on_the_hub(name: str) -> None:
    with pytest.raises(ConfigError, match="no such file or directory"):
        datasets.load_dataset_rows(name, "train")


def test_a_hub_that_does_not_answer_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for get in (
        lambda: datasets.load_dataset_rows("owner/name", "train"),
        lambda: datasets.fetch_dataset_directory("o/n"),
    ):
        with pytest.raises(ConfigError, match=r"cannot be reached \(.*refused.*\): name a local file or directory"):
            get()


def test_a_field_is_asked_for_by_name() -> None:
    row = {"n": 1, "text": "x", "flag": True, "null": None}
    assert datasets.read_field(row, "n", int, "row 1") == 1
    assert datasets.read_field(row, "null", str, "row 1", "") == ""
    assert datasets.read_field(row, "gone", str, "row 1", "y") == "y"
    with pytest.raises(
        ConfigError, match=r"row 1: the field 'gone' \(str\) is missing; the row has flag, n, null, text"
    ):
        datasets.read_field(row, "gone", str, "row 1")
    with pytest.raises(ConfigError, match="row 1: the field 'text' must be int, not str 'x'"):
        datasets.read_field(row, "text", int, "row 1")
    with pytest.raises(ConfigError, match="must be int, not bool"):
        datasets.read_field(row, "flag", int, "row 1")


@pytest.mark.parametrize(
    ("environment", "split", "fields", "least"),
    [
        ("gsm8k_agent", "train", {"question": str, "answer": str}, 10),
        ("hermes_swe", "test", {"task_id": str, "prompt": str, "test": str, "entry_point": str}, 5),
    ],
)
def test_shipped_sets(environment: str, split: str, fields: dict[str, type], least: int) -> None:
    assert len(datasets.load_items("shipped", environment, split, fields)) >= least
    with pytest.raises(ConfigError, match="row 1 of 'shipped': the field 'no_such'"):
        datasets.load_items("shipped", environment, split, {"no_such": str})
