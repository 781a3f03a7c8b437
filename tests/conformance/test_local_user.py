"""The local backend passes the suite as an ordinary user, also when the tests run as root."""

from __future__ import annotations

import json
import os

import pytest

from hermes_exec.testing.conformance import Outcome
from hermes_exec.testing.plugin import conformance_known_failures, test_conformance
from tests.ordinary_user import run_as_ordinary_user

__all__ = ["conformance_known_failures", "test_conformance"]


@pytest.fixture(scope="module")
def conformance_outcomes(request: pytest.FixtureRequest) -> dict[str, Outcome]:
    if os.geteuid() != 0:
        pytest.skip("the tests run as an ordinary user: test_local.py is this")
    here = [
        str(item.callspec.params["conformance_check"])
        for item in request.session.items
        if item.path == request.path and isinstance(item, pytest.Function) and hasattr(item, "callspec")
    ]
    outcomes = [Outcome(**fields) for fields in json.loads(run_as_ordinary_user("tests.conformance.as_user", *here))]
    return {outcome.name: outcome for outcome in outcomes}
