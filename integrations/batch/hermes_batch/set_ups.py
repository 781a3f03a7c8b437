"""The set-ups that samples of a prompt share: which prompts have one, and how long it is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from hermes_agent import SharedSetUp
from hermes_batch.task import Task
from hermes_batch.unit_queue import UnitQueue
from hermes_batch.units import Unit
from hermes_exec import ConfigError


def find_shared_groups(units: Sequence[Unit], check_slot: Callable[[Task], None]) -> frozenset[str]:
    """Return the groups of several samples with a `setup` or `tree`, whose slots can be forked.

    Other files are put in faster than a slot is forked. `check_slot` raises ConfigError if the slots of a task cannot
    be forked.
    """
    counts = Counter(unit.task.group for unit in units)
    tasks = {unit.task.group: unit.task for unit in units if unit.task.setup is not None or unit.task.tree is not None}
    kinds: dict[object, bool] = {}
    groups = set()
    for group, task in tasks.items():
        kind = (task.container_image, task.profile, task.network)
        if counts[group] > 1 and kind not in kinds:
            try:
                check_slot(task)
                kinds[kind] = True
            except ConfigError:
                kinds[kind] = False
        if counts[group] > 1 and kinds[kind]:
            groups.add(group)
    return frozenset(groups)


@dataclass(slots=True)
class _SetUpInUse:
    """A shared set-up, and the number of samples that are worked on with it."""

    shared: SharedSetUp = field(default_factory=SharedSetUp)
    samples: int = 0


class SharedSetUps:
    """The set-ups of the groups whose samples share one.

    A set-up is kept as long as a sample of its group is worked on or is the next one: the sandbox of its checkpoint is
    kept for it, and others may wait for this sandbox.
    """

    def __init__(self, groups: Collection[str], queue: UnitQueue) -> None:
        self._groups, self._queue = groups, queue
        self._in_use: dict[str, _SetUpInUse] = {}

    @asynccontextmanager
    async def use(self, group: str) -> AsyncIterator[SharedSetUp | None]:
        """Yield the set-up for a sample of a group, or None if its samples share none."""
        if group not in self._groups:
            yield None
            return
        set_up = self._in_use.setdefault(group, _SetUpInUse())
        set_up.samples += 1
        try:
            yield set_up.shared
        finally:
            set_up.samples -= 1
            if not set_up.samples and self._queue.next_group != group:
                del self._in_use[group]
                await set_up.shared.drop()
