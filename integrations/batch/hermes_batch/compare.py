"""The prompts that one run solved and another did not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hermes_batch.index import is_record
from hermes_batch.trajectories import iterate_rows


@dataclass
class SolvedSamples:
    """The samples of a prompt in a run. Only samples with a score count.

    Attributes:
        id: The id of the prompt.
        solved: The number of solved samples.
        scored: The number of samples with a score.
    """

    id: str
    solved: int = 0
    scored: int = 0


@dataclass(frozen=True)
class ComparedPrompt:
    """A prompt that only one of two runs solved.

    Attributes:
        id: The id of the prompt, in the first run that has it.
        group: The group of the prompt.
        solved: Solved samples in each run.
        scored: Samples with a score in each run.
    """

    id: str
    group: str
    solved: tuple[int, int]
    scored: tuple[int, int]


@dataclass(frozen=True)
class Comparison:
    """The prompts of two runs. A prompt is solved if one of its samples is.

    Attributes:
        runs: The directories of the runs.
        only_first: Prompts that only the first run solved.
        only_second: Prompts that only the second run solved.
        both: The number of prompts that both runs solved.
        neither: The number of prompts that neither run solved.
        not_compared: The number of prompts without a score in the first run, and in the second one.
    """

    runs: tuple[Path, Path]
    only_first: tuple[ComparedPrompt, ...]
    only_second: tuple[ComparedPrompt, ...]
    both: int
    neither: int
    not_compared: tuple[int, int]

    @property
    def compared(self) -> int:
        """The number of prompts with a score in both runs."""
        return len(self.only_first) + len(self.only_second) + self.both + self.neither

    @property
    def solved(self) -> tuple[int, int]:
        """The number of compared prompts that each run solved."""
        return self.both + len(self.only_first), self.both + len(self.only_second)


def compare_runs(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> Comparison:
    """Return the prompts that one of two runs solved and the other did not.

    Prompts are the same if their content is (`group`), wherever they are in the data and whatever their id is.

    Raises:
        ConfigError: If a directory has no trajectories.
    """
    runs = Path(first), Path(second)
    ours, theirs = (_count_samples(run) for run in runs)
    prompts = {group: _join(group, ours[group], theirs[group]) for group in ours if group in theirs}
    prompts = {group: prompt for group, prompt in prompts.items() if min(prompt.scored)}
    only = [prompt for prompt in prompts.values() if bool(prompt.solved[0]) is not bool(prompt.solved[1])]
    both = sum(min(prompt.solved) > 0 for prompt in prompts.values())
    groups = ours.keys() | theirs.keys()
    missing = (sum(group not in side or not side[group].scored for group in groups) for side in (ours, theirs))
    return Comparison(
        runs=runs,
        only_first=tuple(prompt for prompt in only if prompt.solved[0]),
        only_second=tuple(prompt for prompt in only if prompt.solved[1]),
        both=both,
        neither=len(prompts) - len(only) - both,
        not_compared=(next(missing), next(missing)),
    )


def _count_samples(run: Path) -> Mapping[str, SolvedSamples]:
    """Return the samples of each group of a run, in the order in which the groups first ended."""
    groups: dict[str, SolvedSamples] = {}
    for row in iterate_rows(run):
        if not is_record(row):
            continue
        samples = groups.setdefault(str(row.get("group", "")), SolvedSamples(str(row.get("id", ""))))
        samples.solved += row.get("solved") == "solved"
        samples.scored += row.get("solved") in ("solved", "unsolved")
    return groups


def _join(group: str, ours: SolvedSamples, theirs: SolvedSamples) -> ComparedPrompt:
    return ComparedPrompt(ours.id, group, (ours.solved, theirs.solved), (ours.scored, theirs.scored))
