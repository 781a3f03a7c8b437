"""The Nomad backend passes the suite where a tenant has the whole sandbox."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from hermes_exec import SandboxPool
from hermes_exec.testing.conformance import PoolFactory
from hermes_exec.testing.plugin import conformance_known_failures, conformance_outcomes, test_conformance
from tests.support.nomad_agent import Agent

__all__ = ["conformance_known_failures", "conformance_outcomes", "test_conformance"]


@pytest.fixture(scope="module")
def conformance_pool_factory(nomad_agent: Agent, docker_image: Callable[[str], str]) -> PoolFactory:
    return partial(
        SandboxPool,
        "nomad",
        **nomad_agent.options(image=docker_image("debian"), slots_per_sandbox=1, slot_root="shared"),
    )
