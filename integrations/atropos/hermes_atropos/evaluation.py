"""An evaluation: each item is evaluated once and its result is appended to a file as soon as it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_agent import RolloutResult
from hermes_exec import ConfigError
from hermes_exec.file_lock import lock_file
from hermes_exec.private_files import make_directory, open_private

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class EvaluatedItem:
    """The result of one rollout of an item: whether it was solved, and its reward. Both are None if the failure was not
    the model's (`cause` and `error` explain it). An episode that exceeded its deadline counts as not solved. `sample`
    counts the rollouts of an item from 0, and `rerolls` has the number of earlier tries by cause.
    """

    key: str
    sample: int
    category: str | None
    solved: bool | None
    reward: float | None
    finish: str
    cause: str
    error: str | None
    turns: int
    seconds: float
    check_output: str
    rerolls: Mapping[str, int]

    @classmethod
    def of(
        cls, key: str, sample: int, category: str | None, result: RolloutResult, rerolls: Mapping[str, int]
    ) -> EvaluatedItem:
        """Return the result of a rollout."""
        late = result.finish == "deadline"
        verdict, episode = result.verdict, result.episode
        error, unknown = result.failure, result.solved is None and not late
        return cls(
            key=key,
            sample=sample,
            category=category,
            solved=False if late else result.solved,
            reward=0.0 if late else result.reward,
            finish=result.finish,
            cause=str(result.cause),
            error=f"{error.kind}: {error.message}" if error is not None else result.finish if unknown else None,
            turns=0 if episode is None else episode.turns,
            seconds=round(result.seconds, 3),
            check_output="" if verdict is None else verdict.output,
            rerolls=dict(rerolls),
        )


_FIELDS = tuple(field.name for field in fields(EvaluatedItem))


class SampleFile:
    """The results file of an evaluation, with one JSON object per line. Each line is flushed to disk before the next
    item starts in its place.

    With `resume`, items that an earlier run solved or failed are kept; items without a result are dropped.

    Raises:
        ConfigError: If another evaluation writes to the file, or if a line has another format.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        make_directory(path.parent)
        self._lock = open(path.with_name(f"{path.name}.lock"), "a", opener=open_private)  # noqa: SIM115 - kept open
        if not lock_file(self._lock):
            self._lock.close()
            raise ConfigError(f"another evaluation writes to {path}: use another directory")
        kept = {
            (item.key, item.sample): (item, line)
            for item, line in (_read_items(path) if resume else ())
            if item.solved is not None
        }
        self.earlier = [item for item, _ in kept.values()]
        aside = path.with_name(f"{path.name}.new")
        with open(aside, "w", encoding="utf-8", opener=open_private) as file:
            file.writelines(f"{line}\n" for _, line in kept.values())
        aside.replace(path)
        self._file = open(path, "a", encoding="utf-8", opener=open_private)  # noqa: SIM115 - kept open

    def write(self, row: Mapping[str, Any]) -> None:
        """Append an item: an `EvaluatedItem` as a dict, with its `messages`."""
        line = json.dumps(row, ensure_ascii=False)
        self._file.write(line.encode("utf-8", "replace").decode() + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._lock.close()


def pass_rates(done: Iterable[EvaluatedItem], name: str = "eval") -> dict[str, float]:
    """Return the share of solved rollouts, overall and by category. Rollouts without a result are not counted. With
    several rollouts of an item, `solved_once` is the share of items that one of them solved.
    """
    scored = [item for item in done if item.solved is not None]
    items = {item.key for item in scored}
    metrics = {f"{name}/items": float(len(items))}
    if len(scored) > len(items):
        metrics[f"{name}/samples"] = float(len(scored))
        metrics[f"{name}/solved_once"] = len({item.key for item in scored if item.solved}) / len(items)
    if scored:
        metrics[f"{name}/pass_rate"] = sum(bool(item.solved) for item in scored) / len(scored)
        metrics[f"{name}/reward_mean"] = sum(item.reward or 0.0 for item in scored) / len(scored)
    for category in sorted({item.category for item in scored if item.category is not None}):
        in_category = [item for item in scored if item.category == category]
        metrics[f"{name}/pass_rate_{category}"] = sum(bool(item.solved) for item in in_category) / len(in_category)
    return metrics


def results_table(title: str, done: Iterable[EvaluatedItem]) -> Table:
    """Return a table of the share of solved items by category. `unknown` counts the items without a result."""
    from rich.table import Table

    results = Table(title=title)
    for column in ("category", "items", "solved", "pass rate", "unknown"):
        results.add_column(column, justify="left" if column == "category" else "right")
    by_category: dict[str, list[bool | None]] = {}
    for item in done:
        by_category.setdefault(item.category or "-", []).append(item.solved)
    rows = sorted(by_category.items())
    if len(rows) != 1:
        rows.append(("all", [solved for _, each in rows for solved in each]))
    for name, outcomes in rows:
        scored = [solved for solved in outcomes if solved is not None]
        rate = f"{sum(scored) / len(scored):.1%}" if scored else "-"
        results.add_row(name, str(len(outcomes)), str(sum(scored)), rate, str(len(outcomes) - len(scored)))
    return results


def _read_items(path: Path) -> Iterator[tuple[EvaluatedItem, str]]:
    """Yield the items of a file, each with its line."""
    for data in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            line = data.decode()
            row = json.loads(line)
        except ValueError:
            continue  # an incomplete last line after a kill or a full disk
        if not isinstance(row, dict) or not set(_FIELDS) <= row.keys():
            raise ConfigError(f"{path} is not the file of an evaluation: use another directory, or remove it")
        yield EvaluatedItem(**{name: row[name] for name in _FIELDS}), line
