"""The Singularity backend passes the suite where a tenant has the whole sandbox."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from hermes_exec import SandboxPool
from hermes_exec.testing.conformance import PoolFactory
from hermes_exec.testing.plugin import conformance_known_failures, conformance_outcomes, test_conformance

__all__ = ["conformance_known_failures", "conformance_outcomes", "test_conformance"]


@pytest.fixture(scope="module")
def conformance_pool_factory(singularity_image: Callable[[str], str]) -> PoolFactory:
    return partial(SandboxPool, "singularity", image=singularity_image("debian"))
