"""The records of earlier invocations: the ones that stay, and the samples that have none yet."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from hermes_batch.budget import read_unrecorded
from hermes_batch.columns import former_group
from hermes_batch.index import Row
from hermes_batch.result import BatchResult, Spending
from hermes_batch.settings import read_settings
from hermes_batch.tally import Tally
from hermes_batch.task import Task
from hermes_batch.trajectories import Changes, Key
from hermes_batch.units import Unit, make_key
from hermes_exec.errors import ConfigError


class EarlierRecords:
    """Selects the records to keep: one trainable record for each sample of the run, and all records of others."""

    def __init__(self, dataset: Path | str, units: Sequence[Unit], until_solved: int | None = None) -> None:
        self._dataset, self._until_solved = dataset, until_solved
        self._units = {unit.key: unit for unit in units}
        self.solved: Counter[str] = Counter()
        """The number of solved samples of the run, by group."""
        self._done: set[str] = set()
        self._again: set[str] = set()
        self._others = 0
        self._tally = Tally()
        self._spending = Spending()

    def plan_changes(self, rows: Iterable[Row]) -> Changes:
        """Return the records that change, by the offset of their lines: their new keys, or None to remove one because
        its sample is done by another record or runs again.

        Args:
            rows: The index rows of all records.

        Raises:
            ConfigError: If there are results and none belongs to a prompt of the dataset.
        """
        former = _FormerKeys(self._units.values())
        changes: Changes = {}
        trainable = 0
        for row in rows:
            trainable += bool(row.get("trainable"))
            own_key = str(row["group"]), int(row["sample"])
            key = former.find(row) or own_key
            self._spending.add_record(row)
            if self._is_kept(row, make_key(*key)):
                self._tally.add(row)
                if key != own_key:
                    changes[row["offset"]] = key
            else:
                changes[row["offset"]] = None
        if trainable and not self._done:
            raise ConfigError(
                f"none of the {trainable} results belongs to a prompt of {self._dataset}; resume with the dataset of "
                "the run (--dataset), whose prompts may have moved or become more, or use another --out"
            )
        return changes

    def _is_kept(self, row: Row, key: str) -> bool:
        if key not in self._units:
            self._others += 1
            return True
        if not row.get("trainable") or key in self._done:
            self._again.add(key)
            return False
        self._done.add(key)
        if row.get("solved") == "solved":
            self.solved[key.rpartition("/")[0]] += 1
        return True

    def make_result(self, out: Path) -> BatchResult:
        """Return the state of the run at its start."""
        total = self._tally.records + len(self.remaining)
        settings = read_settings(out)
        cost, tokens = read_unrecorded(settings)
        return BatchResult(
            out,
            total,
            self._tally,
            self._tally.records,
            self._others,
            seconds=float(settings.get("seconds") or 0.0),
            spending=Spending(self._spending.cost + cost, self._spending.tokens + tokens),
        )

    @cached_property
    def remaining(self) -> list[Unit]:
        """The samples to work on, after `plan_changes`: first those without a record, then those that may be refused
        again.
        """
        remaining = [key for key, unit in self._units.items() if key not in self._done and not self._is_enough(unit)]
        return [self._units[key] for key in sorted(remaining, key=self._again.__contains__)]

    def _is_enough(self, unit: Unit) -> bool:
        return self._until_solved is not None and self.solved[unit.task.group] >= self._until_solved


class _FormerKeys:
    """Finds the prompts of records that a version without groups wrote: by the digest of the line, and the number of
    the prompt if several lines are the same.
    """

    def __init__(self, units: Iterable[Unit]) -> None:
        self._units = units

    @cached_property
    def _tasks(self) -> dict[str, list[Task]]:
        tasks: defaultdict[str, list[Task]] = defaultdict(list)
        for unit in self._units:
            if unit.sample == 0:
                tasks[unit.task.digest].append(unit.task)
        return tasks

    def find(self, row: Row) -> Key | None:
        """Return the key of a record's prompt, or None if the record has a key or no prompt has its line."""
        tasks = self._tasks.get(row["task_digest"]) if row["group"] == former_group(row) else None
        if not tasks:
            return None
        task = next((task for task in tasks if task.index == row["prompt_index"]), tasks[0])
        tasks.remove(task)
        return task.group, 0
