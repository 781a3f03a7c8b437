"""Tasks in the format of Endless Terminals. Each is a directory `task_*`, local or from the hub."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hermes_atropos import datasets
from hermes_exec import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class EndlessTask:
    """A task: the instruction, the directory with the definition of its image, and the test of the final state."""

    name: str
    instruction: str
    environment: Path
    test: Path
    category: str = ""
    facts: dict[str, Any] = field(default_factory=dict, compare=False)


def read_task(directory: Path) -> EndlessTask:
    """Read the task in a directory.

    Raises:
        ConfigError: If something is missing or wrong.
    """
    environment = directory / "environment" if (directory / "environment").is_dir() else directory
    facts = _facts(environment / "task.json")
    instruction = directory / "instruction.md"
    text = instruction.read_text("utf-8").strip() if instruction.is_file() else str(facts.get("description", ""))
    if not text:
        raise ConfigError(f"the task {str(directory)!r} has neither instruction.md nor a description in task.json")
    tests = (directory / "tests" / "test_final_state.py", directory / "test_final_state.py")
    test = next((path for path in tests if path.is_file()), None)
    if test is None:
        raise ConfigError(f"the task {str(directory)!r} has no tests/test_final_state.py")
    return EndlessTask(directory.name, text, environment, test, str(facts.get("category", "")), facts)


def load_tasks(dataset: str | None, split: str, base_dir: str) -> list[EndlessTask]:
    """Return all tasks. Blocks.

    Without a dataset, or with `shipped`, these are the tasks in `base_dir`, or the shipped ones. Otherwise they come
    from the dataset: a tree of task directories, or rows that name directories (`extra_info.task_dir`) below
    `base_dir`.
    """
    if dataset in (None, "", datasets.SHIPPED):
        return _tasks_below(Path(base_dir).expanduser() if base_dir else datasets.data_directory("endless_terminals"))
    if Path(dataset).expanduser().is_dir():
        return _tasks_below(Path(dataset).expanduser())
    if not base_dir and Path(dataset).suffix not in (".jsonl", ".json", ".parquet"):
        directory = datasets.fetch_dataset_directory(dataset)
        if any(directory.rglob("task_*/instruction.md")):
            return _tasks_below(directory)
    rows = datasets.load_dataset_rows(dataset, split)
    return [read_task(_directory_of(row, f"row {n} of {dataset!r}", base_dir)) for n, row in enumerate(rows, 1)]


def split_tasks(tasks: Sequence[T], ratio: float, seed: int) -> tuple[list[T], list[T]]:
    """Split tasks into training and evaluation tasks. The same seed gives the same split, and both parts have at least
    one task if there are two.
    """
    if not 0 <= ratio < 1:
        raise ConfigError(f"eval_split_ratio must be from 0 to below 1, not {ratio}")
    order = list(tasks)
    random.Random(seed).shuffle(order)
    held_out = min(len(order) - 1, max(1, int(len(order) * ratio))) if ratio else 0
    return order[held_out:], order[:held_out]


def _tasks_below(directory: Path) -> list[EndlessTask]:
    directories = sorted(_task_directories(directory), key=lambda path: path.name)
    if not directories:
        raise ConfigError(f"{str(directory)!r} has no directory task_*")
    return [read_task(path) for path in directories]


def _task_directories(directory: Path) -> Iterable[Path]:
    if not directory.is_dir():
        raise ConfigError(f"tasks_base_dir {str(directory)!r} is not a directory")
    here = [path for path in directory.glob("task_*") if path.is_dir()]
    return here or [path for path in directory.glob("*/task_*") if path.is_dir()]


def _directory_of(row: dict[str, Any], where: str, base_dir: str) -> Path:
    info, reward = row.get("extra_info"), row.get("reward_spec")
    name = (info or {}).get("task_dir") or (reward or {}).get("ground_truth") or row.get("task_dir")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: no directory (extra_info.task_dir); it has {', '.join(sorted(row))}")
    for directory in (Path(name), Path(base_dir).expanduser() / Path(name).name):
        if directory.is_dir():
            return directory
    raise ConfigError(f"{where}: no such directory {name!r}: set tasks_base_dir to its parent directory")


def _facts(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        facts = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} is not JSON: {error}") from error
    if not isinstance(facts, dict):
        raise ConfigError(f"{str(path)!r} must contain an object")
    return facts
