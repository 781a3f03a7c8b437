"""Fixtures of the tests of adapters, which run in the environment of their target: `python -m tests.doors TARGET`.

The conftest of the other tests is not loaded there, because it imports packages that the targets do not have.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import cache

import pytest

from tests.support.doors import ROOT
from tests.support.interrupts import take_interrupts

collect_ignore_glob = [] if "HERMES_DOOR" in os.environ else ["*"]
REQUIRED = os.environ.get("HERMES_REQUIRE_ENGINES", "").split(",")


def pytest_configure() -> None:
    """Take interrupts."""
    take_interrupts()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of all targets."""
    return "asyncio"


@pytest.fixture(scope="session")
def docker_image() -> Callable[[str], str]:
    """A function from a test image (busybox, debian, distroless) to its full name; it is built when it is not there."""

    @cache
    def image(name: str) -> str:
        command = [str(ROOT / ".venv" / "bin" / "python"), "-m", "tests.images.build", "--tag", name]
        built = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        if built.returncode == 0:
            return built.stdout.strip()
        reason = f"engine docker: {built.stderr.strip()[-300:]}"
        if "docker" in REQUIRED:
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)

    return image
