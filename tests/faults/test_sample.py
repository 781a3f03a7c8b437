"""A few seeds of `make test-faults`: random work on a pool that breaks, judged from outside."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import require_engine
from tests.faults.episode import Verdict, in_own_process

AT_ONCE = 3


def judged(backend: str, seeds: range, image: str | None = None) -> list[str]:
    """What was wrong with these seeds, and how to run each again."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        verdicts: list[Verdict] = list(threads.map(lambda seed: in_own_process(backend, seed, image), seeds))
    assert all(verdict.commands for verdict in verdicts if not verdict.wrong)
    return [f"{verdict.replay}: {wrong}" for verdict in verdicts for wrong in verdict.wrong]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_local_seeds() -> None:
    assert judged("local", range(6)) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.docker
def test_docker_seeds(docker_image: Callable[[str], str]) -> None:
    require_engine("docker")
    assert judged("docker", range(3), docker_image("debian")) == []
