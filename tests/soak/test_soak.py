"""A minute and a half of it on few slots, beside all other tests; half an hour on 128 is `make soak`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import require_engine
from tests.soak.verdict import latencies, rows

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_work_leaves_everything_as_it_was() -> None:
    require_engine("docker")
    command = [sys.executable, "-m", "tests.soak", "--minutes", "1.5", "--slots", "32", "--any-latency"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stderr


def held(at_s: float, descriptors: float, containers: float = 4) -> dict[str, float]:
    return {"s": at_s, "driver descriptors": descriptors, "containers": containers}


def test_what_grows_is_told() -> None:
    flat = {row.name: row.flat for row in rows([held(s, 40 + s % 3) for s in range(100)])}
    leaking = {row.name: row.flat for row in rows([held(s, 40 + s) for s in range(100)])}
    another = {row.name: row.flat for row in rows([held(s, 40, 4 + s // 60) for s in range(100)])}
    assert flat == {"driver descriptors": True, "containers": True}
    assert leaking == {"driver descriptors": False, "containers": True}
    assert another == {"driver descriptors": True, "containers": False}


def test_latencies_are_those_of_the_first_and_the_last_minute() -> None:
    probes = [(s / 10, 0.01 if s < 5000 else 0.03) for s in range(10_000)]
    assert latencies(probes) == (10.0, 30.0)
