"""The Docker backend passes the suite in slots of one container, each with a root of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hermes_exec.testing.conformance import PoolFactory
from hermes_exec.testing.plugin import conformance_known_failures, conformance_outcomes, test_conformance
from tests.conformance.docker_images import factory

__all__ = ["conformance_known_failures", "conformance_outcomes", "test_conformance"]


@pytest.fixture(scope="module")
def conformance_pool_factory(docker_image: Callable[[str], str]) -> PoolFactory:
    return factory("own_root", docker_image)
