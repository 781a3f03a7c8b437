"""What the tests of backends share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import docker
import pytest
from docker import DockerClient


@pytest.fixture
def engine(docker_image: Callable[[str], str]) -> Iterator[DockerClient]:
    """A client of the test's own, to look from outside."""
    docker_image("busybox")
    with contextlib.closing(docker.from_env()) as client:
        yield client
