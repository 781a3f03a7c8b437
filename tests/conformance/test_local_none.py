"""The local backend passes the suite without namespaces and root: at the level landlock where the kernel has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hermes_exec.testing.conformance import Outcome
from hermes_exec.testing.plugin import conformance_known_failures, test_conformance
from tests.conformance.in_container import outcomes_in_container

__all__ = ["conformance_known_failures", "test_conformance"]


@pytest.fixture(scope="module")
def conformance_outcomes(request: pytest.FixtureRequest, docker_image: Callable[[str], str]) -> dict[str, Outcome]:
    return outcomes_in_container(request, docker_image, "1000")
