"""The units of work: their order, and the seeds and toolsets that follow from their keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hermes_batch import BatchConfig
from hermes_batch.set_ups import find_shared_groups
from hermes_batch.task import Task
from hermes_batch.units import Unit, gather_samples, iterate_units
from hermes_exec import ConfigError

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


def test_samples_of_some_groups_come_together() -> None:
    units = [*iterate_units(TASKS, 3)]
    together = gather_samples(units, {TASKS[1].group})
    assert [(unit.task.prompt, unit.sample) for unit in together] == [
        ("p0", 0), ("p1", 0), ("p1", 1), ("p1", 2), ("p2", 0), ("p0", 1), ("p2", 1), ("p0", 2), ("p2", 2),
    ]  # fmt: skip
    assert gather_samples(units, ()) == units


def test_groups_with_a_set_up_for_several_samples_share_it() -> None:
    def task(index: int, **entries: Any) -> Task:
        return Task(index=index, place="line", group=f"g{index}", prompt="p", **entries)

    asked: list[str | None] = []

    def check_slot(task: Task) -> None:
        asked.append(task.image)
        if task.image == "whole":
            raise ConfigError("no checkpoints")

    tasks = [
        task(0, setup="make"),
        task(1, tree=Path("tree")),
        task(2, files={"a": "b"}),
        task(3, setup="make", image="whole"),
        task(4, setup="make", image="whole"),
    ]
    assert find_shared_groups([*iterate_units(tasks, 2)], check_slot) == {"g0", "g1"}
    assert asked == [None, "whole"]
    assert find_shared_groups([*iterate_units(tasks, 1)], check_slot) == frozenset()
    assert len(asked) == 2
