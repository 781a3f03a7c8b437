"""The Nomad backend passes the suite in slots of a container of Apptainer, each with a root of its own."""

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
def conformance_pool_factory(nomad_agent: Agent, singularity_image: Callable[[str], str]) -> PoolFactory:
    return partial(
        SandboxPool,
        "nomad",
        **nomad_agent.options(driver="singularity", image=singularity_image("debian")),
    )
