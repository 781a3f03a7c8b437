"""The units of work of a run: samples of prompts, with keys that stay the same wherever a prompt stands."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from hermes_batch.task import Task

_SEED_BITS = 31


@dataclass(frozen=True, slots=True)
class Unit:
    """One sample of a prompt. `sample` counts from 0."""

    task: Task
    sample: int = 0

    @property
    def key(self) -> str:
        """The key of the unit: `<group>/<sample>`."""
        return make_key(self.task.group, self.sample)

    def seed(self, run_seed: int) -> int:
        """Return the seed of this unit in a run with this seed: a number from 0 to 2³¹ - 1."""
        digest = hashlib.sha256(f"{run_seed}/{self.key}".encode()).digest()
        return int.from_bytes(digest[:4]) >> (32 - _SEED_BITS)


def make_key(group: str, sample: int) -> str:
    """Return the key of a sample of a prompt."""
    return f"{group}/{sample}"


def gather_samples(units: Sequence[Unit], groups: Collection[str]) -> list[Unit]:
    """Return the units in their order, but all samples of each of these groups at the place of its first one."""
    gathered: dict[object, list[Unit]] = {}
    for place, unit in enumerate(units):
        gathered.setdefault(unit.task.group if unit.task.group in groups else place, []).append(unit)
    return [unit for samples in gathered.values() for unit in samples]


def iterate_units(tasks: Sequence[Task], samples: int) -> Iterator[Unit]:
    """Yield the units of a run: the first samples of all prompts, then the second ones, and so on."""
    return (Unit(task, sample) for sample in range(samples) for task in tasks)
