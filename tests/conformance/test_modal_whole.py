"""The Modal backend passes the suite where a tenant has the whole sandbox."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from hermes_exec import SandboxPool
from hermes_exec.testing.conformance import PoolFactory
from hermes_exec.testing.plugin import conformance_outcomes, test_conformance
from tests.engines.modal_server import Server

__all__ = ["conformance_known_failures", "conformance_outcomes", "test_conformance"]

INIT = "process 1 of a sandbox is an init of Modal's, and the runner its child"


@pytest.fixture(scope="module")
def conformance_known_failures() -> dict[str, str]:
    return {"kill_everybody": f"{INIT}: root's kill -9 -1 ends the sandbox, and the tenant is told to have done it"}


@pytest.fixture(scope="module")
def conformance_pool_factory(modal_server: Server, docker_image: Callable[[str], str]) -> PoolFactory:
    return partial(SandboxPool, "modal", image=docker_image("debian"), slots_per_sandbox=1)
