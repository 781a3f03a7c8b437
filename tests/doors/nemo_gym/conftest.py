"""Provider blocks for the sandboxes of NeMo Gym, on `local` and Docker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Block = dict[str, dict[str, Any]]
LOCAL: Block = {"hermes": {"backend": "local", "min_isolation": "namespaces"}}


@pytest.fixture
def local() -> Block:
    """The provider block of a pool on this machine."""
    return LOCAL


@pytest.fixture(scope="session")
def docker(docker_image: Callable[[str], str]) -> Block:
    """The provider block of a pool of containers, each with one slot."""
    return {"hermes": {"backend": "docker", "image": docker_image("debian"), "pull_policy": "never"}}


@pytest.fixture(scope="session")
def shared_docker(docker: Block) -> Block:
    """The provider block of a pool of containers whose slots have roots of their own."""
    return {"hermes": {**docker["hermes"], "slots_per_sandbox": 8}}


@pytest.fixture(params=["local", "docker", "shared_docker"])
def block(request: pytest.FixtureRequest) -> Block:
    """Each of the provider blocks."""
    block: Block = request.getfixturevalue(request.param)
    return block
