"""The samples of a run that wait for a worker."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

from hermes_batch.result import BatchResult
from hermes_batch.units import Unit


class UnitQueue:
    """A queue that leaves out further samples of prompts that were solved often enough.

    Args:
        units: The samples to work on, in their order.
        result: The state of the run. Its `total` is reduced by the samples that are left out.
        until_solved: How many solved samples of a prompt are enough. None: work on all samples.
        solved: The number of solved samples of earlier invocations, by group.
    """

    def __init__(
        self,
        units: Iterable[Unit],
        result: BatchResult,
        until_solved: int | None = None,
        solved: Mapping[str, int] | None = None,
    ) -> None:
        self._units, self._result, self._until_solved = deque(units), result, until_solved
        self._solved: Counter[str] = Counter(solved)

    def __bool__(self) -> bool:
        """Return whether a sample waits."""
        while self._units and self._is_enough(self._units[0]):
            self._units.popleft()
            self._result.total -= 1
        return bool(self._units)

    def _is_enough(self, unit: Unit) -> bool:
        return self._until_solved is not None and self._solved[unit.task.group] >= self._until_solved

    @property
    def next_group(self) -> str | None:
        """The group of the next sample. None: the queue is empty."""
        return self._units[0].task.group if self else None

    def pop(self) -> Unit:
        """Return the next sample. The queue must not be empty."""
        return self._units.popleft()

    def put_back(self, unit: Unit) -> None:
        """Add a sample at the end, to be worked on again."""
        self._units.append(unit)

    def note_record(self, record: Mapping[str, Any]) -> None:
        """Note the outcome of a sample."""
        if self._until_solved is not None and record["solved"] == "solved":
            self._solved[record["group"]] += 1
