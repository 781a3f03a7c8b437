"""Readers of datasets: every form gives the same rows, and an error names its row."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from hermes_batch import read_dataset
from hermes_batch.rows.source import parse_dataset, read_rows, resolve_dataset
from hermes_exec.errors import ConfigError

ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": 'say "hi",\nplease', "files": {"x.txt": "1"}, "max_turns": 3, "network": False},
    {"id": "b", "prompt": "né", "toolsets": ["file"], "deadline_s": 1.5, "metadata": {"level": 2}},
    {"id": "c", "messages": [{"role": "user", "content": "go"}], "check": "true"},
]
STRUCTURED = ("files", "toolsets", "metadata", "messages")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def all_columns(*, texts: bool) -> list[dict[str, Any]]:
    """The rows with every column, as tables have them, with JSON texts for structures."""
    names = dict.fromkeys(name for row in ROWS for name in row)
    rows = [{name: row.get(name) for name in names} for row in ROWS]
    for row in rows:
        for name in STRUCTURED if texts else ():
            row[name] = None if row[name] is None else json.dumps(row[name])
    return rows


def write_lines(directory: Path) -> Path:
    path = directory / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def write_array(directory: Path) -> Path:
    path = directory / "rows.json"
    path.write_text(json.dumps(ROWS, indent=1))
    return path


def write_csv(directory: Path) -> Path:
    path = directory / "rows.csv"
    rows = all_columns(texts=True)
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(directory: Path) -> Path:
    path = directory / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(all_columns(texts=False)), path)
    return path


def write_text_parquet(directory: Path) -> Path:
    path = directory / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(all_columns(texts=True)), path)
    return path


def save_to_disk(directory: Path) -> str:
    path = str(directory / "saved")
    datasets.DatasetDict({"train": datasets.Dataset.from_list(all_columns(texts=True))}).save_to_disk(path)
    return f"hf:{path}:train"


def directory_of_files(directory: Path) -> str:
    (directory / "data").mkdir()
    write_text_parquet(directory / "data").rename(directory / "data" / "train.parquet")
    return f"hf:{directory / 'data'}:train"


@pytest.mark.parametrize(
    "write", [write_lines, write_array, write_csv, write_parquet, write_text_parquet, save_to_disk, directory_of_files]
)
def test_every_form_has_the_same_tasks(write: Callable[[Path], Path | str], tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    expected = [task.model_dump(exclude={"place", "digest"}) for task in read_dataset(write_lines(plain))]
    tasks = read_dataset(write(tmp_path))
    assert [task.model_dump(exclude={"place", "digest"}) for task in tasks] == expected
    assert (tasks[0].max_turns, tasks[0].network, tasks[1].deadline_s) == (3, False, 1.5)


def test_places_name_lines_of_files_and_rows_of_tables(tmp_path: Path) -> None:
    assert [row.place for row in read_rows(write_csv(tmp_path))] == ["line 2", "line 4", "line 5"]
    assert [row.place for row in read_rows(write_parquet(tmp_path))] == ["row 1", "row 2", "row 3"]


def test_array_in_pieces_has_its_rows_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    texts = ["é" * n + '\\"]},{ 1e9\n\n' for n in (1, 400_000, 3, 1_500_000, 2)]
    path.write_text("[" + ",\n".join(json.dumps({"prompt": text}, ensure_ascii=False) for text in texts) + "]")
    rows = [*read_rows(path)]
    assert [row.row["prompt"] for row in rows] == texts
    assert [row.place for row in rows] == [f"line {n}" for n in range(1, 6)]


def test_error_far_into_an_array_has_its_line_and_column(tmp_path: Path) -> None:
    rows = ",\n".join('{"prompt": "%s"}' % ("x" * 1000) for _ in range(3000))
    path = tmp_path / "rows.json"
    path.write_text(f'[{rows},\n{{"prompt": tru}}]')
    *good, wrong = read_rows(path)
    assert len(good) == 3000
    assert (wrong.place, wrong.error) == ("line 3001", "is not JSON: Expecting value (column 12)")


@pytest.mark.parametrize(
    ("name", "text", "errors"),
    [
        ("rows.jsonl", '{"prompt": "a"}\n {"metadata": {"n": [1, %s]}}\n{"prompt": "b"}', ["", "'metadata.n'", ""]),
        ("rows.json", '[{"prompt": "a"},\n{"metadata": {"n": [1, -%s]}}]', ["", "'metadata.n'"]),
    ],
)
def test_integer_too_long_for_python_is_named_with_its_entry(
    name: str, text: str, errors: list[str], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text % ("9" * 5000))
    words = "has an integer of more than 4300 digits in the entry "
    assert [(row.place, row.error) for row in read_rows(path)] == [
        (f"line {number}", error and words + error) for number, error in enumerate(errors, 1)
    ]


def test_lines_after_a_long_first_line_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n" + json.dumps({"prompt": "x" * 2_000_000}) + '\n{"prompt": "b"}\nx\n')
    assert [(row.place, row.error[:11]) for row in read_rows(path)] == [
        ("line 2", ""),
        ("line 3", ""),
        ("line 4", "is not JSON"),
    ]


@pytest.mark.parametrize("form", ["lines", "array", "csv", "parquet"])
def test_reading_holds_a_part_of_the_rows(form: str, tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} " + "x" * 1000} for n in range(20_000)]
    path = tmp_path / {"lines": "a.jsonl", "array": "a.json", "csv": "a.csv", "parquet": "a.parquet"}[form]
    if form == "lines":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif form == "array":
        path.write_text(json.dumps(rows))
    elif form == "csv":
        path.write_text("prompt\n" + "".join(row["prompt"] + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    del rows
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_rows(path)) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt,id\na,1\nb\n", "line 3: has 1 cells, and the heading has 2"),
        ("prompt,id\na,1,2\n", "line 2: has 3 cells, and the heading has 2"),
        ('prompt\n"a" b\n', r"line 2: is not CSV: ',' expected after '\"'"),
        ('prompt\na\n"b\nc\n', "line 3: is not CSV: unexpected end of data"),
        ("prompt,prompt\na,b\n", "line 1: has the column 'prompt' twice"),
        ("prompt,\na,b\n", "line 1: has a column without a name"),
        ("prompt\na\udcff\n", "line 2: is not UTF-8"),
        ("pr\udcffompt\na\n", "line 1: is not UTF-8"),
        ("prompt,files\na,{x}\n", "line 2: files: is not JSON: Expecting property name"),
        ("prompt,files\na,3\n", "line 2: files: Input should be a valid dictionary"),
        ("prompt,max_turns\na,many\n", "line 2: max_turns: is not JSON"),
        ("prompt,max_turns\na,0\n", "line 2: max_turns: Input should be greater than or equal to 1"),
        (f"prompt,max_turns\na,{'9' * 5000}\n", "line 2: max_turns: has an integer of more than 4300 digits"),
        ("prompt,network\na,no\n", "line 2: network: is not JSON"),
        ("prompt\n\n", "has no prompt"),
        ("", "has no prompt"),
    ],
)
def test_wrong_csv_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=message):
        read_dataset(path)


def test_csv_reads_booleans_and_numbers_of_pandas(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prompt,network,max_turns,id\na,True,3.0,007\nb,FALSE,,\n")
    one, two = read_dataset(path)
    assert (one.network, one.max_turns, one.id) == (True, 3, "007")
    assert (two.network, two.max_turns, two.name) == (False, None, "task-1")


def test_csv_has_cells_longer_than_128_kib(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prompt\n" + "x" * 200_000 + "\n")
    assert len(read_dataset(path)[0].prompt or "") == 200_000


def write_table(directory: Path, columns: Mapping[str, object]) -> Path:
    path = directory / "rows.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_values_become_json(tmp_path: Path) -> None:
    files = pa.array([[("a", b"\xff")]], pa.map_(pa.string(), pa.binary()))
    columns = {
        "prompt": ["a"],
        "files": files,
        "max_turns": [float(3)],
        "when": [datetime(2026, 1, 2, tzinfo=UTC)],
        "price": [Decimal("1.50")],
        "level": [float("nan")],
    }
    (task,) = read_dataset(write_table(tmp_path, columns), extra="metadata")
    assert (task.files, task.max_turns) == ({"a": b"\xff"}, 3)
    assert task.metadata == {"when": "2026-01-02T00:00:00+00:00", "price": "1.50", "level": None}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt": ["a", None]}, "row 2: has no entry prompt"),
        ({"prompt": ["a"], "level": [float("inf")]}, "row 1: has the number inf"),
        ({"prompt": ["a"], "max_turns": [1.5]}, "row 1: max_turns"),
        (
            {
                "prompt": ["a", "b", "c"],
                "files": pa.array([[("a", "1")], [("b", "1"), ("b", "2")], None], pa.map_(pa.string(), pa.string())),
            },
            "row 2: cannot be read: .*'b'",
        ),
    ],
)
def test_wrong_parquet_rows_are_refused(columns: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_dataset(write_table(tmp_path, columns), extra="metadata")


def test_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_text('{"prompt": "a"}')
    with pytest.raises(ConfigError, match=r"cannot read the dataset .*rows\.parquet: Parquet magic bytes"):
        read_dataset(path)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet"])
def test_missing_file_and_directory_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"cannot read the dataset .*{name}: No such file"):
        read_dataset(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=f"cannot read the dataset .*{name}: Is a directory"):
        read_dataset(tmp_path / name)


def test_columns_have_the_names_of_entries(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "a", "prompt": "old", "answer": 3}\n')
    columns = {"prompt": "question", "id": "answer"}
    (task,) = read_dataset(path, columns=columns)
    assert (task.prompt, task.id, task.metadata) == ("a", "3", {})
    (task,) = read_dataset(path, columns={"prompt": "question"}, extra="metadata")
    assert task.metadata == {"answer": 3}
    with pytest.raises(ConfigError, match=r"line 1: has no column 'qestion' \(it has answer, prompt, question\)"):
        read_dataset(path, columns={"prompt": "qestion"})
    with pytest.raises(ConfigError, match="columns: a row has no entry 'promt'; did you mean 'prompt'"):
        read_dataset(path, columns={"promt": "question"})


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("hf:openai/gsm8k", ("openai/gsm8k", None, None)),
        ("hf:openai/gsm8k:test", ("openai/gsm8k", None, "test")),
        ("hf:openai/gsm8k:main:train[:100]", ("openai/gsm8k", "main", "train[:100]")),
        ("hf:/data/x:train[10%:]", ("/data/x", None, "train[10%:]")),
    ],
)
def test_hub_names_have_path_configuration_and_split(name: str, parts: tuple[str | None, ...]) -> None:
    assert parse_dataset(name) == parts
    assert parse_dataset(Path(name)) == parts
    assert resolve_dataset(name) == name


@pytest.mark.parametrize("name", ["hf:", "hf::train", "hf:a:b:c:d", "hf:a:"])
def test_wrong_hub_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not hf:PATH:SPLIT or hf:PATH:CONFIGURATION:SPLIT"):
        read_dataset(name)


def test_hub_directories_are_resolved_and_have_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": "a", "tree": "work"}]
    datasets.Dataset.from_list(rows).save_to_disk("saved")
    (tmp_path / "saved" / "work").mkdir()
    assert resolve_dataset("hf:saved") == f"hf:{tmp_path}/saved"
    (task,) = read_dataset("hf:saved")
    assert task.tree == tmp_path / "saved" / "work"


def test_splits_that_are_missing_or_not_named_are_refused(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list([{"prompt": "a"}])
    both, one = str(tmp_path / "both"), str(tmp_path / "one")
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(both)
    rows.save_to_disk(one)
    with pytest.raises(ConfigError, match=f"hf:{both} has the splits train, test: name one, such as hf:{both}:train"):
        read_dataset(f"hf:{both}")
    with pytest.raises(ConfigError, match=r"cannot load hf:.*:dev: ValueError: it has the splits train, test"):
        read_dataset(f"hf:{both}:dev")
    with pytest.raises(ConfigError, match=r"cannot load hf:.*: ValueError: it has no splits"):
        read_dataset(f"hf:{one}:train")
    (tmp_path / "data").mkdir()
    write_text_parquet(tmp_path / "data").rename(tmp_path / "data" / "train.parquet")
    with pytest.raises(ConfigError, match=r"cannot load hf:.*data:dev: ValueError: Unknown split"):
        read_dataset(f"hf:{tmp_path / 'data'}:dev")
    with pytest.raises(ConfigError, match=r"cannot load hf:.*nowhere"):
        read_dataset(f"hf:{tmp_path / 'nowhere'}:train")


@pytest.mark.parametrize(
    ("dataset", "package", "extra"),
    [("rows.parquet", "pyarrow", "batch"), ("hf:x:train", "datasets", "hf")],
)
def test_missing_package_is_named_with_its_extra(dataset: str, package: str, extra: str, tmp_path: Path) -> None:
    """JSON lines need neither."""
    write_parquet(tmp_path)
    write_lines(tmp_path)
    program = f"""
import sys
sys.modules[{package!r}] = None
from hermes_batch import read_dataset
from hermes_exec.errors import ConfigError
print(len(read_dataset("rows.jsonl")))
try:
    read_dataset({dataset!r})
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("3\n")
    assert f"needs {package}. Run: pip install 'hermes-exec[{extra}]'" in done.stdout
