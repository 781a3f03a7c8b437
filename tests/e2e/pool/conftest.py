"""Fixtures of the tests of checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest

from hermes_exec import SandboxPool


@pytest.fixture(
    params=[
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("singularity", marks=pytest.mark.singularity),
    ]
)
def own_root_pool(
    request: pytest.FixtureRequest, docker_image: Callable[[str], str], singularity_image: Callable[[str], str]
) -> Callable[..., SandboxPool]:
    """Make a pool whose slots have their own roots, on each engine that can have them."""
    backend = str(request.param)
    if backend == "singularity" and os.geteuid() != 0:
        pytest.skip("slots of Apptainer get their own roots as root")
    image = (docker_image if backend == "docker" else singularity_image)("debian")
    return partial(SandboxPool, backend, image=image, slot_root="own")
