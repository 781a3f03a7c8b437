"""Tasks of both terminal environments: what is read of directories and rows, and what is refused."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_atropos import datasets
from hermes_atropos.envs.endless_terminals import tasks as endless
from hermes_atropos.envs.terminalbench_2 import tasks as bench
from hermes_exec import ConfigError

SHIPPED = datasets.data_directory("endless_terminals")


def test_a_split_is_the_same_for_a_seed() -> None:
    """DEFECTS E18."""
    train, held = endless.split_tasks(range(100), 0.1, 7)
    assert (len(train), len(held)) == (90, 10)
    assert sorted(train + held) == list(range(100))
    assert endless.split_tasks(range(100), 0.1, 7) == (train, held)
    assert endless.split_tasks(range(100), 0.1, 8) != (train, held)
    assert endless.split_tasks([1], 0.5, 0) == ([1], [])
    assert [len(part) for part in endless.split_tasks([1, 2], 0.1, 0)] == [1, 1]
    assert endless.split_tasks([1, 2], 0, 0)[1] == []
    with pytest.raises(ConfigError, match="eval_split_ratio"):
        endless.split_tasks([1], 1.0, 0)


def test_rows_name_directories(tmp_path: Path) -> None:
    name = "task_000005_shared_folder"
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"description": "x", "extra_info": {"task_dir": f"/their/machine/{name}"}}) + "\n")
    (task,) = endless.load_tasks(str(rows), "train", str(SHIPPED))
    assert (task.name, task.category) == (name, "permissions")
    with pytest.raises(ConfigError, match="set tasks_base_dir"):
        endless.load_tasks(str(rows), "train", "")
    rows.write_text('{"description": "x"}\n')
    with pytest.raises(ConfigError, match=r"row 1 of .* no directory"):
        endless.load_tasks(str(rows), "train", str(SHIPPED))


@pytest.mark.parametrize(
    ("left_out", "why"),
    [
        ("instruction.md", ""),
        ("tests/test_final_state.py", "has no tests/test_final_state.py"),
        ("instruction.md environment/task.json", "neither instruction.md nor a description"),
    ],
)
def test_a_task_that_is_not_whole(left_out: str, why: str, tmp_path: Path) -> None:
    for path in ("instruction.md", "tests/test_final_state.py", "environment/task.json", "environment/Dockerfile"):
        if path not in left_out.split():
            (tmp_path / "task_1" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "task_1" / path).write_text('{"description": "Told."}' if "json" in path else "x")
    if not why:
        assert [task.instruction for task in endless.load_tasks(None, "", str(tmp_path))] == ["Told."]
        return
    with pytest.raises(ConfigError, match=why):
        endless.load_tasks(None, "", str(tmp_path))


def test_no_tasks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no directory task_"):
        endless.load_tasks(None, "", str(tmp_path))
    with pytest.raises(ConfigError, match="is not a directory"):
        endless.load_tasks(None, "", str(tmp_path / "gone"))


def test_packed_rows_are_the_same_each_time_and_hold_no_solution(tmp_path: Path) -> None:
    rows = bench.pack_tasks(datasets.data_directory("terminalbench_2"))
    assert rows == bench.pack_tasks(datasets.data_directory("terminalbench_2"))
    for row in rows:
        for name in ("environment_tar", "tests_tar"):
            with tarfile.open(fileobj=io.BytesIO(base64.b64decode(row[name]))) as archive:
                assert not [member for member in archive.getnames() if "solution" in member or "solve" in member]
    module = [
        sys.executable,
        "-m",
        "hermes_atropos.envs.terminalbench_2.tasks",
        str(datasets.data_directory("terminalbench_2")),
    ]
    path = str(Path(datasets.__file__).parents[1])
    printed = subprocess.run(module, capture_output=True, text=True, check=True, env={"PYTHONPATH": path}).stdout
    (tmp_path / "rows.jsonl").write_text(printed)
    assert datasets.load_dataset_rows(str(tmp_path / "rows.jsonl"), "test") == rows
    assert bench.load_tasks(str(tmp_path / "rows.jsonl"), "test") == bench.load_tasks("shipped", "test")


GOOD: dict[str, Any] = {"task_name": "t", "instruction": "i", "docker_image": "x", "test_sh": "true"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"task_name": None}, "row 1: the field 'task_name' must be str"),
        ({"instruction": 3}, r"row 1 \(t\): the field 'instruction' must be str, not int 3"),
        ({"docker_image": ""}, "neither docker_image nor environment_tar"),
        ({"test_sh": ""}, "neither test_sh nor tests_tar"),
        ({"tests_tar": "%%%"}, "the field 'tests_tar' must be base64"),
    ],
)
def test_a_bad_row_is_named(change: dict[str, Any], why: str) -> None:
    assert bench.parse_task(GOOD, "row 1").name == "t"
    with pytest.raises(ConfigError, match=why):
        bench.parse_task({**GOOD, **change}, "row 1")


def archive(*members: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return out.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, target, size
    return made


@pytest.mark.parametrize(
    "make",
    [
        lambda: archive(member("../out")),
        lambda: archive(member("a/../../out")),
        lambda: archive(member("a", tarfile.SYMTYPE, "/tmp"), member("a/out")),
        lambda: archive(member("a", tarfile.SYMTYPE, "..")),
        lambda: archive(member("a", tarfile.LNKTYPE, "../../etc/passwd")),
        lambda: archive(member("a", tarfile.CHRTYPE)),
        lambda: archive(member("a", tarfile.FIFOTYPE)),
        lambda: b"no archive",
        lambda: archive(member("a", size=5000))[:-40],
    ],
)
def test_an_archive_that_leads_out_is_refused(make: Callable[[], bytes], tmp_path: Path) -> None:
    """DEFECTS E14."""
    with pytest.raises(ConfigError, match="t: the archive cannot be unpacked"):
        bench.unpack(make(), tmp_path / "in" / "deep", "t")
    assert sorted(path.name for path in tmp_path.rglob("*")) in (["deep", "in"], ["a", "deep", "in"])
    assert not list(tmp_path.rglob("out"))


def test_an_absolute_name_stays_inside(tmp_path: Path) -> None:
    bench.unpack(archive(member("/etc/x", size=1)), tmp_path / "in", "t")
    assert (tmp_path / "in" / "etc" / "x").read_bytes() == b"x"


def test_an_archive_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "UNPACKED_BYTES", 1000)
    with pytest.raises(ConfigError, match="contains more than"):
        bench.unpack(archive(member("a", size=600), member("b", size=600)), tmp_path / "in", "t")
    monkeypatch.setattr(bench, "MEMBERS", 2)
    with pytest.raises(ConfigError, match="contains more than"):
        bench.unpack(archive(member("a"), member("b"), member("c")), tmp_path / "more", "t")


def write_harbor_task(directory: Path, toml: str) -> Path:
    for name, text in {
        "instruction.md": "Do it.\n", "task.toml": toml, "environment/Dockerfile": "FROM x\nWORKDIR /app\n",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n", "solution/solve.sh": "true\n",
    }.items():  # fmt: skip
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def test_directories_of_harbor_are_read(tmp_path: Path) -> None:
    toml = (
        'schema_version = "1.1"\n[task]\nname = "org/one"\n[metadata]\ncategory = "files"\n'
        "[verifier]\ntimeout_sec = 900.0\n[agent]\ntimeout_sec = 5400\n"
        '[environment]\ndocker_image = "registry/one:1"\ncpus = 1\n'
    )
    one = write_harbor_task(tmp_path / "one", toml)
    write_harbor_task(tmp_path / "two", 'version = "1.0"\n')
    first, second = bench.load_tasks(str(tmp_path), "test")
    assert (first.name, first.category, first.instruction, first.image) == ("one", "files", "Do it.", "registry/one:1")
    assert (first.task_timeout_s, first.test_timeout_s) == (5400, 900.0)
    assert (second.name, second.category, second.image, second.test_timeout_s) == ("two", "", "", None)
    assert bench.find_workdir(second) == "/app"
    assert bench.load_tasks(str(one), "test") == [first]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("task.toml", "a = ", "cannot be read: Invalid value"),
        ("task.toml", "[agent]\ntimeout_sec = 'long'\n", "the field 'task_timeout_s' must be a number of seconds"),
        ("task.toml", "[metadata]\ncategory = 3\n", "the field 'category' must be str"),
        ("instruction.md", None, "cannot be read: .*instruction.md"),
        ("tests/test.sh", None, "neither test_sh nor tests_tar is set"),
    ],
)
def test_message_about_a_directory_names_its_path(name: str, text: str | None, why: str, tmp_path: Path) -> None:
    task = write_harbor_task(tmp_path / "one", "")
    (task / name).unlink()
    if text is not None:
        (task / name).write_text(text)
    elif name.startswith("tests"):
        (task / "tests").rmdir()
    with pytest.raises(ConfigError, match=f"the task '{task}'.*{why}"):
        bench.load_tasks(str(tmp_path), "test")
