"""What a sandbox of Nomad does before its runner is there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hermes_exec.backends.nomad.delivery import WAIT

PLAIN_SLEEP = """#!/bin/sh
case $1 in *.*) exit 1 ;; esac
exec /bin/sleep "$1"
"""
"""A sleep that takes whole seconds alone, as POSIX has it."""


@pytest.fixture(params=["any sleep", "whole seconds"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the shell looks for sleep."""
    if request.param == "whole seconds":
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "sleep").write_text(PLAIN_SLEEP)
        (tmp_path / "bin" / "sleep").chmod(0o755)
    return f"{tmp_path / 'bin'}:/bin:/usr/bin"


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_it_waits_for_the_runner_no_longer_than_it_should(shell: str, path: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")

    def waited() -> subprocess.CompletedProcess[str]:
        argv = [shell, "-c", WAIT.format(limit_s=2, poll_s=0.02) + "echo through"]
        env = {"PATH": path}
        return subprocess.run(argv, cwd=tmp_path, env=env, timeout=50, check=False, capture_output=True, text=True)

    never = waited()
    assert (never.returncode, never.stdout, never.stderr) == (1, "", "")
    shutil.copy("/bin/true", tmp_path / "runner")
    came = waited()
    assert (came.returncode, came.stdout, came.stderr) == (0, "through\n", "")
