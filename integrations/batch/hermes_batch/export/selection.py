"""Which records of runs become part of a data set, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hermes_batch.export.example import TrainingExample
from hermes_batch.export.options import ExportOptions
from hermes_batch.index import TRAJECTORIES, is_record
from hermes_batch.trajectories import iterate_rows
from hermes_exec.errors import ConfigError

Rank = tuple[float, float, int, int, int]


class LeftOut(NamedTuple):
    """A record that is not written, with a stable word and a sentence for the reason."""

    reason: str
    detail: str


class Unreadable(NamedTuple):
    """A line that is not a record."""

    run: Path
    offset: int


class RunFile(NamedTuple):
    """A run, and the size of its file when the export began: later records are not read."""

    out: Path
    size: int


def find_runs(outs: Iterable[Path]) -> list[RunFile]:
    """Return the runs in these directories.

    Raises:
        ConfigError: If there is none, a directory holds no run, or one is given twice.
    """
    runs: dict[Path, RunFile] = {}
    for out in outs:
        try:
            size = (out / TRAJECTORIES).stat().st_size
        except OSError as error:
            raise ConfigError(f"{out} has no {TRAJECTORIES}: {error.strerror or error}") from error
        if out.resolve() in runs:
            raise ConfigError(f"the run {out} is given twice")
        runs[out.resolve()] = RunFile(out, size)
    if not runs:
        raise ConfigError("give at least one directory of a run")
    return [*runs.values()]


def iterate_examples(runs: Sequence[RunFile]) -> Iterator[TrainingExample | Unreadable]:
    """Yield the records of runs, in the order of the runs and of their files."""
    for number, (out, size) in enumerate(runs):
        with (out / TRAJECTORIES).open("rb") as lines:
            for row in iterate_rows(out):
                if row["offset"] >= size:
                    break
                readable = is_record(row)
                yield TrainingExample(out, number, row, lines) if readable else Unreadable(out, row["offset"])


def filter_record(example: TrainingExample, options: ExportOptions) -> LeftOut | None:
    """Return why a record is left out for its own sake, or None."""
    row = example.row
    if not row.get("trainable", True) and not options.include_untrainable:
        return LeftOut("untrainable", f"its result does not measure the model (cause {row.get('cause', 'unknown')})")
    if options.only and example.outcome not in options.only:
        return LeftOut("outcome", f"it is {example.outcome}")
    if options.min_reward is not None:
        if example.reward is None:
            return LeftOut("reward", "it has no reward")
        if example.reward < options.min_reward:
            return LeftOut("reward", f"its reward is {example.reward:g}")
    if not options.failed_calls:
        failed = next((call for call in example.calls if not call.get("ok")), None)
        if failed is not None:
            name, kind = failed.get("name") or "no tool", failed.get("error_kind") or "error"
            return LeftOut("failed_call", f"a call of {name} failed: {kind}")
    if options.max_tokens is not None and example.tokens > options.max_tokens:
        estimated = "" if example.reported_tokens else " (estimated)"
        return LeftOut("tokens", f"it has {example.tokens} tokens{estimated}")
    return None


class Choice:
    """The records that remain after a choice among records of the same prompt.

    The choice needs all records, and keeps a few numbers of each.
    """

    def __init__(self, chosen: dict[tuple[int, int], LeftOut | None]) -> None:
        self._chosen = chosen

    @classmethod
    def of(
        cls,
        examples: Iterable[TrainingExample | Unreadable],
        options: ExportOptions,
        reject: Callable[[TrainingExample], LeftOut | None],
    ) -> Choice | None:
        """Return the choice that the options ask for. None if they ask for none, without reading a record.

        Args:
            examples: All records.
            options: The settings of the export.
            reject: Returns why a record is left out for its own sake.
        """
        if options.per_prompt is None and options.dedupe is None:
            return None
        places: dict[tuple[int, int], LeftOut | None] = {}
        distinct: dict[bytes, tuple[Rank, str]] = {}
        for example in examples:
            if isinstance(example, Unreadable) or reject(example) is not None:
                continue
            places[example.place] = None
            rank = _rank(example, options)
            key = _key(example, options)
            other = distinct.get(key)
            if other is None or rank < other[0]:
                distinct[key] = (rank, example.group)
            if other is not None:
                places[max(rank, other[0])[-2:]] = LeftOut("duplicate", _DUPLICATES[str(options.dedupe)])
        if options.per_prompt is not None:
            _choose_per_prompt(distinct, options.per_prompt, places)
        return cls(places)

    def reject(self, example: TrainingExample) -> LeftOut | None:
        """Return why a record was not chosen, or None if it was."""
        return self._chosen.get(example.place)


_DUPLICATES = {
    "prompt": "another record has the same prompt",
    "first-call": "another record of its prompt begins with the same call",
}


def _choose_per_prompt(
    distinct: dict[bytes, tuple[Rank, str]], per_prompt: int | str, places: dict[tuple[int, int], LeftOut | None]
) -> None:
    limit = per_prompt if isinstance(per_prompt, int) else 1
    taken: dict[str, int] = {}
    for rank, group in sorted(distinct.values()):
        taken[group] = taken.get(group, 0) + 1
        if taken[group] > limit:
            what = f"the {per_prompt} record" if isinstance(per_prompt, str) else "another record"
            places[rank[-2:]] = LeftOut("per_prompt", f"{what} of its prompt is exported instead")


def _rank(example: TrainingExample, options: ExportOptions) -> Rank:
    """Return a number tuple: of two records of a prompt, the lower one is preferred. Its end is the record's place."""
    best = -(example.reward or 0.0) if options.per_prompt == "best" else 0.0
    if options.per_prompt == "best" and example.reward is None:
        best = float("inf")
    length = example.tokens if options.per_prompt in ("shortest", "best") else 0
    return (best, length, example.number, *example.place)


def _key(example: TrainingExample, options: ExportOptions) -> bytes:
    """Return what records have in common of which one is exported."""
    if options.dedupe == "prompt":
        return example.prompt_digest()
    if options.dedupe == "first-call":
        return example.first_call_digest()
    return repr(example.place).encode()
