"""The units of work: their order, and the seeds and toolsets that follow from their keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hermes_batch import BatchConfig
from hermes_batch.task import Task
from hermes_batch.units import Unit, iterate_units

TASKS = [Task(index=n, place=f"line {n + 1}", group=f"{n:032x}", prompt=f"p{n}") for n in range(3)]


def config(**more: Any) -> BatchConfig:
    return BatchConfig(dataset=Path("d"), out=Path("o"), model="m", **more)


def test_units_come_sample_by_sample() -> None:
    units = [(unit.task.prompt, unit.sample) for unit in iterate_units(TASKS, 2)]
    assert units == [("p0", 0), ("p1", 0), ("p2", 0), ("p0", 1), ("p1", 1), ("p2", 1)]


def test_seed_follows_from_run_group_and_sample() -> None:
    units = [*iterate_units(TASKS, 4)]
    seeds = [config(seed=7).make_rollout(unit).loop["sampling"]["seed"] for unit in units]
    assert len({*seeds, *(unit.seed(8) for unit in units)}) == 2 * len(units)
    assert all(0 <= seed < 1 << 31 for seed in seeds)
    moved = Unit(TASKS[0].model_copy(update={"index": 9, "place": "line 20"}), 1)
    assert moved.seed(7) == seeds[3]
    assert "seed" not in config().make_rollout(units[0]).loop["sampling"]
    assert config(seed=7, sampling={"seed": 1}).make_rollout(units[0]).loop["sampling"] == {"seed": 1}


def test_toolsets_follow_from_run_group_and_sample() -> None:
    drawing = config(seed=4, distribution="terminal_tasks")
    drawn = [drawing.toolsets_of(unit) for unit in iterate_units(TASKS, 20)]
    assert len(set(drawn)) > 1
    moved = [Unit(unit.task.model_copy(update={"index": 50}), unit.sample) for unit in iterate_units(TASKS, 20)]
    assert [drawing.toolsets_of(unit) for unit in moved] == drawn
