"""The selection of prompts: its steps, their order, and what a grown dataset changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes_batch.cli.arguments import parse_ids
from hermes_batch.selection import parse_shard, select_tasks
from hermes_batch.task import Task
from hermes_exec.errors import ConfigError


def task(number: int, name: str | None = None) -> Task:
    return Task(index=number, place=f"line {number + 1}", group=f"{number:032x}", prompt="p", id=name)


TASKS = [task(number, None if number == 3 else f"t{number}") for number in range(10)]


def names(tasks: list[Task] = TASKS, **selection: Any) -> list[str]:
    return [task.name for task in select_tasks(tasks, **selection)]


def test_steps_and_their_order() -> None:
    assert names(offset=2, limit=5, shard="2/3") == ["task-3", "t6"]
    assert names(ids=["t7", "t5", "task-3", "t1"], offset=1, limit=2) == ["task-3", "t5"]
    shuffled = names(shuffle=5)
    assert sorted(shuffled) == sorted(names())
    assert shuffled not in (names(), names(shuffle=6))
    assert names(shuffle=5, offset=1, limit=4, shard="2/2") == shuffled[1:5][1::2]


@pytest.mark.parametrize("count", [1, 3, 10])
def test_shards_are_all_prompts_once(count: int) -> None:
    parts = [names(shuffle=1, shard=f"{number}/{count}") for number in range(1, count + 1)]
    assert sorted(name for part in parts for name in part) == sorted(names())


def test_shuffled_order_stays_when_prompts_come_and_go() -> None:
    fewer = names(TASKS[2:7], shuffle=3)
    assert [name for name in names(shuffle=3) if name in fewer] == fewer


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"ids": ["t1", "t99"]}, r"ids: the dataset has no prompt 't99'; did you mean 't9'"),
        ({"ids": [f"x{n}" for n in range(9)]}, r"no prompt 'x0', 'x1', 'x2', 'x3', 'x4' and 4 more"),
        ({"offset": 10}, r"no prompt is selected \(offset 10\): the dataset has 10 prompts"),
        ({"shard": "11/11"}, r"no prompt is selected \(shard 11/11\)"),
        ({"ids": []}, r"no prompt is selected \(ids\)"),
    ],
)
def test_wrong_selection(selection: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        names(**selection)


@pytest.mark.parametrize("text", ["", "2", "0/2", "3/2", "-1/2", "1/2/3", "a/b", "1/0", "1 /2", "²/3"])
def test_wrong_shard(text: str) -> None:
    with pytest.raises(ConfigError, match="NUMBER/COUNT"):
        parse_shard(text)


def test_ids_are_a_file_or_a_list(tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("a\n\n b,c \n")
    assert parse_ids(str(tmp_path / "ids")) == ("a", "b,c")
    assert parse_ids("a, b,") == ("a", "b")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for wrong in (",", str(tmp_path / "binary")):
        with pytest.raises(ConfigError, match="--ids"):
            parse_ids(wrong)
