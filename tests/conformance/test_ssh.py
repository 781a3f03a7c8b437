"""The SSH backend passes the suite by OpenSSH, as the user of the tests."""

from __future__ import annotations

from functools import partial

import pytest

from hermes_exec import SandboxPool
from hermes_exec.testing.conformance import PoolFactory
from hermes_exec.testing.plugin import conformance_known_failures, conformance_outcomes, test_conformance
from tests.support.sshd import Server

__all__ = ["conformance_known_failures", "conformance_outcomes", "test_conformance"]


@pytest.fixture(scope="module")
def conformance_pool_factory(ssh_server: Server) -> PoolFactory:
    return partial(SandboxPool, "ssh", **ssh_server.options(transport="openssh"))
