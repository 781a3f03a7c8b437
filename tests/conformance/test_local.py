"""The local backend passes the suite, as whoever runs the tests."""

from __future__ import annotations

from functools import partial

import pytest

from hermes_exec import SandboxPool
from hermes_exec.testing.conformance import PoolFactory
from hermes_exec.testing.plugin import conformance_known_failures, conformance_outcomes, test_conformance

__all__ = ["conformance_known_failures", "conformance_outcomes", "test_conformance"]


@pytest.fixture(scope="module")
def conformance_pool_factory() -> PoolFactory:
    return partial(SandboxPool, "local")
