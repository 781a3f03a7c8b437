"""What the tests of backends share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker import DockerClient

from tests.support import directories
from tests.support.nomad_agent import Agent
from tests.support.other_user import require_root


@pytest.fixture
def engine(docker_image: Callable[[str], str]) -> Iterator[DockerClient]:
    """A client of the test's own, to look from outside."""
    docker_image("busybox")
    with contextlib.closing(docker.from_env()) as client:
        yield client


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that everybody may pass, where there is another user to try it."""
    require_root()
    with directories.open_directory("open-") as made:
        yield made


@pytest.fixture
def nomad_options(nomad_agent: Agent, docker_image: Callable[[str], str]) -> Iterator[dict[str, Any]]:
    """Of pools whose slots share the root of their sandbox; no job is left by a test."""
    yield nomad_agent.options(image=docker_image("busybox"), slot_root="shared")
    left = nomad_agent.jobs()
    for job in left:
        nomad_agent.ask("DELETE", f"job/{job}?purge=true")
    assert left == []
