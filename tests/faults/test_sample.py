"""A few seeds of `make test-faults`: random work on a pool that breaks, judged from outside."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import require_engine
from tests.engines import BACKENDS, options_of
from tests.faults.episode import Verdict, in_own_process

AT_ONCE = 3
SEEDS = {"local": 6}


def marked(backend: str) -> list[pytest.MarkDecorator]:
    return [] if backend == "local" else [getattr(pytest.mark, backend)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", [pytest.param(name, marks=marked(name)) for name in BACKENDS])
def test_seeds(backend: str) -> None:
    require_engine(backend)
    with options_of(backend) as options, ThreadPoolExecutor(AT_ONCE) as threads:
        seeds = range(SEEDS.get(backend, 3))
        verdicts: list[Verdict] = list(threads.map(lambda seed: in_own_process(backend, seed, options), seeds))
    assert all(verdict.commands for verdict in verdicts if not verdict.wrong)
    assert [f"{verdict.replay}: {wrong}" for verdict in verdicts for wrong in verdict.wrong] == []
