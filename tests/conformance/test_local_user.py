"""The local backend passes the suite as an ordinary user, also when the tests run as root."""

from __future__ import annotations

import pytest

from hermes_exec.testing.conformance import Outcome
from hermes_exec.testing.plugin import conformance_known_failures, test_conformance
from tests.conformance.as_user import outcomes_as_user

__all__ = ["conformance_known_failures", "test_conformance"]


@pytest.fixture(scope="module")
def conformance_outcomes(request: pytest.FixtureRequest) -> dict[str, Outcome]:
    return outcomes_as_user(request, "local")
