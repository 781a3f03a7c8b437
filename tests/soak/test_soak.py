"""A minute and a half of it on few slots, beside all other tests; half an hour on 128 is `make soak`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_exec import SandboxPool
from tests.conftest import require_engine
from tests.soak.hostile import attack
from tests.soak.verdict import latencies, rows

ROOT = Path(__file__).resolve().parents[2]


OTHERS = (
    pytest.param("ssh", marks=pytest.mark.ssh),
    pytest.param("singularity", marks=pytest.mark.singularity),
    pytest.param("nomad-docker", marks=pytest.mark.nomad),
    pytest.param("nomad-singularity", marks=[pytest.mark.nomad, pytest.mark.singularity]),
)


def work(minutes: float, slots: int, *more: str) -> None:
    command = [sys.executable, "-m", "tests.soak", "--minutes", str(minutes), "--slots", str(slots), "--any-latency"]
    done = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.whole
@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_work_leaves_everything_as_it_was() -> None:
    require_engine("docker")
    work(1.5, 32)


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", OTHERS)
def test_work_on_another_backend_leaves_everything_as_it_was(backend: str) -> None:
    for engine in backend.split("-"):
        require_engine(engine)
    work(3, 16, "--backend", backend)


@pytest.mark.docker
@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_work_beside_hostile_tenants_leaves_everything_as_it_was() -> None:
    require_engine("docker")
    work(5, 32, "--hostile", "4")


@pytest.mark.anyio
@pytest.mark.docker
async def test_hostile_work_is_refused_in_slots_that_are_not_confined(docker_image: Callable[[str], str]) -> None:
    done: Counter[str] = Counter()
    pool = SandboxPool("docker", image=docker_image("debian"), slots_per_sandbox=2, slot_root="shared")
    async with pool:
        with pytest.raises(RuntimeError, match="at level uid is not for hostile work"):
            await attack(pool, 0, 0, time.monotonic() + 60, done)
    assert not done


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
