"""The Modal backend passes the suite against the loopback server, with eight slots in a sandbox."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from hermes_exec import SandboxPool
from hermes_exec.testing.conformance import PoolFactory
from hermes_exec.testing.plugin import conformance_known_failures, conformance_outcomes, test_conformance
from tests.engines.modal_server import Server

__all__ = ["conformance_known_failures", "conformance_outcomes", "test_conformance"]


@pytest.fixture(scope="module")
def conformance_pool_factory(modal_server: Server, docker_image: Callable[[str], str]) -> PoolFactory:
    return partial(SandboxPool, "modal", image=docker_image("debian"))
