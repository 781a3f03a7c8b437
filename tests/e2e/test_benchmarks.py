"""The benchmark's own contenders and parts do what they are measured at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import naive_client
from benchmarks.contender import LARGE, SMALL
from benchmarks.measurements import keep_in_flight

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_naive_worker_answers_many_at_once_and_moves_bytes() -> None:
    async with naive_client.open_local() as worker:
        times, _ = await keep_in_flight(worker.noop, 8, 0)
        assert len(times) == 8
        for data in (SMALL, LARGE):
            await worker.write(data)
            await worker.read(data)
        await worker.output()


def test_a_part_writes_a_report_that_says_of_the_others_that_they_were_not_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.run", "--only", "transfer", "--rounds", "1", "--megabytes", "1"]
    done = subprocess.run([*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "RESULTS.md").read_text()
    assert "## 1 MiB up" in text
    assert "## 1 MiB down" in text
    assert "not measured" in text


@pytest.mark.docker
def test_forks_are_measured_and_compared_by_minima(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.run", "--only", "fork", "--rounds", "1", "--state-megabytes", "2"]
    done = subprocess.run([*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "RESULTS.md").read_text()
    assert "| forks of the large state |" in text
    assert sum("minima" in line for line in text.splitlines()) == 8
