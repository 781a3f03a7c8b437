"""The local backend passes the suite at the level uid, with a private root: as root without namespaces."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hermes_exec.testing.conformance import Outcome
from hermes_exec.testing.plugin import conformance_known_failures, test_conformance
from tests.conformance.in_container import outcomes_in_container

__all__ = ["conformance_known_failures", "test_conformance"]


@pytest.fixture(scope="module")
def conformance_outcomes(request: pytest.FixtureRequest, docker_image: Callable[[str], str]) -> dict[str, Outcome]:
    return outcomes_in_container(request, docker_image, "0")
