"""The prompts of the demonstration: every check fails on the untouched tree, and passes after a solution."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hermes_agent.models.embedded.smollm2 import Examples
from hermes_batch import Task, read_dataset

ROOT = Path(__file__).resolve().parents[3]
TASKS = read_dataset(ROOT / "examples" / "tasks.jsonl")


def shell(command: str, directory: Path) -> int:
    return subprocess.run(["sh", "-c", command], cwd=directory, capture_output=True, timeout=30).returncode


def test_there_are_24_with_different_names() -> None:
    assert len({task.name for task in TASKS}) == len(TASKS) == 24
    assert all(task.solution for task in TASKS)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_check_tells_solved_from_unsolved(task: Task, tmp_path: Path) -> None:
    assert task.tree is not None
    assert task.check is not None
    assert task.solution is not None
    work = tmp_path / "work"
    shutil.copytree(task.tree, work)
    assert shell(task.check, work) != 0
    assert shell(task.solution, work) == 0
    assert shell(task.check, work) == 0
    for path in sorted(work.rglob("*"), reverse=True):
        if path.is_file() and not path.is_symlink():
            path.write_text("")
    assert shell(task.check, work) != 0 or task.name in {"make-directory", "empty-file"}


def test_no_example_of_the_embedded_model_is_a_task() -> None:
    shown = Examples.load(10_000).near("")
    assert {example.task for example in shown}.isdisjoint(task.prompt for task in TASKS)
    assert {example.command for example in shown}.isdisjoint(task.solution for task in TASKS)
