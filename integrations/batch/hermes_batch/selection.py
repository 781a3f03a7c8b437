"""The selection of prompts from a dataset, so that a pilot can grow and several machines can share the work."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence

from hermes_batch.task import Task
from hermes_exec.config import nearest
from hermes_exec.errors import ConfigError

_SHARD = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)
_MAX_NAMED = 5
_MAX_COMPARED = 100


def parse_shard(text: str) -> tuple[int, int]:
    """Return the number of a shard, from 1, and the number of shards, from a text such as `2/16`.

    Raises:
        ConfigError: If the text is no shard.
    """
    match = _SHARD.fullmatch(text)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise ConfigError(f"shard: give NUMBER/COUNT with a number from 1 to the count, such as 2/16, not {text!r}")
    return number, count


def select_tasks(
    tasks: Sequence[Task],
    *,
    ids: Collection[str] | None = None,
    shuffle: int | None = None,
    offset: int = 0,
    limit: int | None = None,
    shard: str | None = None,
) -> list[Task]:
    """Return the selected prompts, in this order of steps.

    Args:
        tasks: All prompts of the dataset.
        ids: Ids of the prompts to select (`task-3` for the fourth prompt if it has none). None: all.
        shuffle: Seed of the order of the prompts. The order follows from the seed and the prompts' content, so that
            prompts that come or go leave the order of the others. None: the order of the dataset.
        offset: How many prompts to leave out at the beginning.
        limit: The most prompts. None: all.
        shard: `2/16`: the second of 16 parts, which are every 16th prompt from the second on.

    Raises:
        ConfigError: If an id is unknown, if the shard is invalid, or if no prompt is selected.
    """
    selected = [*tasks] if ids is None else _select_ids(tasks, ids)
    if shuffle is not None:
        selected.sort(key=lambda task: hashlib.sha256(f"{shuffle}/{task.group}".encode()).digest())
    selected = selected[offset : None if limit is None else offset + limit]
    if shard is not None:
        number, count = parse_shard(shard)
        selected = selected[number - 1 :: count]
    if not selected:
        steps = {"ids": ids is not None, f"offset {offset}": offset, f"shard {shard}": shard}
        names = ", ".join(name for name, is_given in steps.items() if is_given)
        raise ConfigError(f"no prompt is selected ({names}): the dataset has {len(tasks)} prompts")
    return selected


def _select_ids(tasks: Sequence[Task], ids: Collection[str]) -> list[Task]:
    wanted = set(ids)
    names = {task.name for task in tasks}
    if unknown := sorted(wanted - names):
        more = f" and {len(unknown) - _MAX_NAMED} more" if len(unknown) > _MAX_NAMED else ""
        listed = ", ".join(map(repr, unknown[:_MAX_NAMED]))
        hint = f"; {nearest(unknown[0], names)}" if len(names) <= _MAX_COMPARED else ""
        raise ConfigError(f"ids: the dataset has no prompt {listed}{more}{hint}")
    return [task for task in tasks if task.name in wanted]
