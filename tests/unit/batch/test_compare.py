"""`batch compare` from the command line: prompts that one run solved and another did not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.batch.exporting import CommandLine, make_row, write_run

pytestmark = pytest.mark.anyio
Outcomes = dict[str, list[str]]
SAME: Outcomes = {"1": ["solved"]}
FIRST: Outcomes = SAME | {"2": ["unsolved", "solved"], "3": ["unsolved"], "4": ["solved"], "5": ["solved"]}
SECOND: Outcomes = SAME | {"2": ["unsolved", "unsolved"], "3": ["solved"], "4": ["unscored"], "7": ["solved"]}
UNCHECKED: Outcomes = {"6": ["unchecked"]}


async def write(directory: Path, outcomes: Outcomes, prefix: str) -> Path:
    """Write a run with these outcomes of the samples of each prompt. The ids differ from run to run."""
    row, _ = await make_row("short")
    return write_run(
        directory,
        (
            {**row, "group": name * 32, "id": f"{prefix}{name}", "sample": sample, "solved": outcome}
            for name, samples in outcomes.items()
            for sample, outcome in enumerate(samples)
        ),
    )


@pytest.fixture
async def runs(tmp_path: Path) -> tuple[Path, Path]:
    first = await write(tmp_path / "a", FIRST | UNCHECKED, "a")
    return first, await write(tmp_path / "b", SECOND | {"6": ["solved"]}, "b")


async def test_prompts_are_compared_by_their_content(runs: tuple[Path, Path], batch: CommandLine) -> None:
    ended = batch("compare", *runs, "--json")
    result = json.loads(ended.out)
    assert ended.code == 0
    assert result["only_first"] == [{"id": "a2", "group": "2" * 32, "solved": [1, 0], "scored": [2, 2]}]
    assert result["only_second"] == [{"id": "a3", "group": "3" * 32, "solved": [0, 1], "scored": [1, 1]}]
    assert (result["compared"], result["both"], result["neither"], result["solved"]) == (3, 1, 0, [2, 2])
    # Of seven prompts, the first run has no score for 6 and 7, and the second none for 4 and 5.
    assert result["not_compared"] == [2, 2]


async def test_table_has_both_directions(runs: tuple[Path, Path], batch: CommandLine) -> None:
    ended = batch("compare", *runs)
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert lines == [
        *("solved only in A: 1", "prompt group A solved B solved", f"a2 {'2' * 32} 1 of 2 0 of 2"),
        *("solved only in B: 1", "prompt group A solved B solved", f"a3 {'3' * 32} 0 of 1 1 of 1"),
    ]
    assert f"3 prompts: 2 solved in A ({runs[0]}), 2 in B ({runs[1]}), 1 in both" in ended.err
    assert f"2 prompts have no score in {runs[1]}" in ended.err


async def test_long_tables_are_cut(tmp_path: Path, batch: CommandLine) -> None:
    row, _ = await make_row("short")
    sides = [
        write_run(tmp_path / word, ({**row, "group": f"{at:032x}", "solved": word} for at in range(60)))
        for word in ("solved", "unsolved")
    ]
    ended = batch("compare", *sides)
    assert len(ended.out.splitlines()) == 52
    assert "10 more; --json has all" in ended.err


async def test_directory_without_a_run_is_explained(
    runs: tuple[Path, Path], tmp_path: Path, batch: CommandLine
) -> None:
    ended = batch("compare", runs[0], tmp_path)
    assert ended.code == 2
    assert "has no trajectories.jsonl" in ended.err
