"""The sample of a plain run: always the same, with each test, and on both event loops what is for both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.attack.levels import LEVELS
from tests.attack.table import ROWS
from tests.support.sample import rank

ROOT = Path(__file__).resolve().parents[2]


def collected(file: str, *options: str, **variables: str) -> list[str]:
    """The tests of a file that are of a run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", file, *options]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "HERMES"))}
    done = subprocess.run(command, cwd=ROOT, env=env | variables, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith(file)]


def test_each_test_is_in_it_with_some_of_its_parameters() -> None:
    file = "tests/unit/agent/parsers/test_roundtrip.py"
    sample, other = collected(file), collected(file, HERMES_SAMPLE_SEED="1")
    whole = collected(file, "--whole")
    assert {name.partition("[")[0] for name in sample} == {name.partition("[")[0] for name in whole}
    assert set(sample) < set(whole)
    assert len(sample) == len(other) < len(whole) / 3
    assert sample != other


def test_what_is_for_both_event_loops_runs_on_one_and_half_of_it_on_the_newest_python() -> None:
    file = "tests/unit/aio/test_streams.py"
    sample, newest = collected(file), collected(file, "-m", "newest")
    assert set(newest) < set(sample)
    assert {loop for name in newest for loop in ("asyncio", "trio") if loop in name} == {"asyncio", "trio"}
    assert len(collected(file, "--whole")) == 2 * len(sample)


def test_attacks_are_fired_on_every_level() -> None:
    assert {rank(row.id) % len(LEVELS) for row in ROWS} == set(range(len(LEVELS)))
