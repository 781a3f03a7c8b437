"""The SSH backend passes the suite as an ordinary user of the host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import pytest

from hermes_exec import SandboxPool
from hermes_exec.testing.conformance import PoolFactory
from hermes_exec.testing.plugin import conformance_known_failures, conformance_outcomes, test_conformance
from tests.conftest import require_engine
from tests.support import sshd
from tests.support.ordinary_user import account

__all__ = ["conformance_known_failures", "conformance_outcomes", "test_conformance"]


@pytest.fixture(scope="module")
def conformance_pool_factory() -> Iterator[PoolFactory]:
    require_engine("ssh")
    if os.geteuid() != 0:
        pytest.skip("takes root to make an account; test_ssh.py is this for an ordinary user")
    with account() as user, sshd.server(user) as server:
        yield partial(SandboxPool, "ssh", **server.options())
