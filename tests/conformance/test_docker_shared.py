"""The Docker backend passes the suite in slots of one container that share its root."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from hermes_exec import SandboxPool
from hermes_exec.testing.conformance import PoolFactory
from hermes_exec.testing.plugin import conformance_known_failures, conformance_outcomes, test_conformance

__all__ = ["conformance_known_failures", "conformance_outcomes", "test_conformance"]


@pytest.fixture(scope="module")
def conformance_pool_factory(docker_image: Callable[[str], str]) -> PoolFactory:
    return partial(SandboxPool, "docker", image=docker_image("debian"), slots_per_sandbox=2, slot_root="shared")
