"""The local backend passes the suite as an ordinary user, also when the tests run as root."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_exec.testing.conformance import Outcome
from hermes_exec.testing.plugin import conformance_known_failures, test_conformance

__all__ = ["conformance_known_failures", "test_conformance"]

ROOT = Path(__file__).resolve().parents[2]


def _interpreter(user: str, env: dict[str, str]) -> str:
    """A Python of this version that the user can run with our packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        try:
            done = subprocess.run(
                [candidate, "-c", "import anyio, pydantic, hermes_exec"],
                user=user, group=pwd.getpwnam(user).pw_gid, extra_groups=[], env=env, capture_output=True, check=False,
            )  # fmt: skip
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    pytest.skip(f"the user {user} can run no Python {version} that finds our packages")


@pytest.fixture(scope="module")
def conformance_outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    if os.geteuid() != 0:
        pytest.skip("the tests run as an ordinary user: test_local.py is this")
    here = [
        str(item.callspec.params["conformance_check"])
        for item in request.session.items
        if item.path == request.path and isinstance(item, pytest.Function) and hasattr(item, "callspec")
    ]
    user = "nobody"
    home = Path("/tmp") / f"hermes-conformance-{os.getpid()}"  # the user must reach it, pytest's folders are closed
    home.mkdir(mode=0o700)
    os.chown(home, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    paths = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
    env = {"HOME": str(home), "TMPDIR": str(home), "PATH": os.defpath, "PYTHONPATH": ":".join(paths), "LANG": "C.UTF-8"}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    try:
        command = [_interpreter(user, env), "-m", "tests.conformance.as_user", *here]
        group = pwd.getpwnam(user).pw_gid
        done = subprocess.run(
            command,
            user=user,
            group=group,
            extra_groups=[],
            env=env,
            cwd=home,
            stdout=subprocess.PIPE,
            timeout=580,
            check=True,
        )
        outcomes = [Outcome(**fields) for fields in json.loads(done.stdout)]
    finally:
        subprocess.run(["rm", "-rf", str(home)], check=True)
    return {outcome.name: outcome for outcome in outcomes}
