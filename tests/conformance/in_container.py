"""The suite over the local backend inside of a container, where namespaces cannot be made."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from hermes_exec.testing.conformance import Outcome
from tests.conformance.as_user import chosen
from tests.support.ordinary_user import ROOT

PACKAGES = [path for path in sys.path if path.endswith("-packages")]


def outcomes_in_container(
    request: pytest.FixtureRequest, docker_image: Callable[[str], str], user: str
) -> dict[str, Outcome]:
    """The outcomes of those checks that the module of this request has, as a user of a container of Debian."""
    directories = [str(ROOT), *PACKAGES]
    command = ["docker", "run", "--rm", "--init", "--user", user, "--env", "HOME=/tmp"]
    command += [word for directory in directories for word in ("--volume", f"{directory}:{directory}:ro")]
    command += ["--env", f"PYTHONPATH={':'.join(directories)}", "--env", "PYTHONDONTWRITEBYTECODE=1"]
    command += [docker_image("debian"), f"python{sys.version_info.major}.{sys.version_info.minor}", "-m"]
    command += ["tests.conformance.as_user", "local", "{}", *chosen(request)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    if "executable file not found" in done.stderr or "ModuleNotFoundError" in done.stderr:
        pytest.skip(f"the image has no Python that finds our packages: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    return {fields["name"]: Outcome(**fields) for fields in json.loads(done.stdout)}
