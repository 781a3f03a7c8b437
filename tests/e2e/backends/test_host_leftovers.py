"""What cannot be removed of sandboxes on a host: it is reported, and tried again only by `hermes-exec reap`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_exec.backends.base import ReapFilter
from hermes_exec.backends.capabilities import HasLeftovers
from hermes_exec.backends.local.backend import PREFIX
from hermes_exec.backends.local.config import LocalConfig
from hermes_exec.backends.owner import own_labels
from hermes_exec.backends.registry import make_backend
from hermes_exec.backends.sandbox_directory import LEFT_FILE, SandboxDirectory, make_directory
from hermes_exec.backends.singularity.backend import PREFIX as SINGULARITY
from hermes_exec.backends.singularity.config import SingularityConfig
from hermes_exec.backends.ssh.config import SSHConfig
from tests.e2e.backends.sandboxes import left
from tests.support.other_user import require_root

GONE = replace(own_labels("gone"), pid_start=1)
"""Labels of a driver that has ended."""
KEPT = "kept: operation not permitted"
PROGRAM = (sys.executable, "-m", "hermes_exec.cli.main")
pytestmark = pytest.mark.anyio


def chattr(flag: str, path: Path) -> None:
    subprocess.run(["chattr", flag, path], check=True)


@pytest.fixture
def stubborn(tmp_path: Path) -> Iterator[Callable[[str], SandboxDirectory]]:
    """Makes a directory of a sandbox whose runner was killed, with a file that nobody can remove."""
    require_root()
    kept: list[Path] = []

    def make(prefix: str) -> SandboxDirectory:
        directory = make_directory(str(tmp_path), prefix, GONE)
        (directory.path / "base" / "slots").mkdir(parents=True)
        kept.append(directory.path / "base" / "slots" / "kept")
        kept[0].touch()
        chattr("+i", kept[0])
        return directory

    yield make
    for path in kept:
        with suppress(subprocess.CalledProcessError):
            chattr("-i", path)


@pytest.mark.parametrize("name", ["local", "singularity", pytest.param("ssh", marks=pytest.mark.ssh)])
async def test_a_removal_that_fails_is_reported_and_not_tried_again(
    name: str,
    stubborn: Callable[[str], SandboxDirectory],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    config: Any = LocalConfig(base_dir=str(tmp_path))
    if name == "singularity":
        config = SingularityConfig(base_dir=str(tmp_path))
    elif name == "ssh":
        config = SSHConfig(**request.getfixturevalue("ssh_server").options(base_dir=str(tmp_path)))
    directory = stubborn(SINGULARITY if name == "singularity" else PREFIX)
    kept = directory.path / "base" / "slots" / "kept"
    other, backend = make_backend(config), make_backend(config)
    assert await other.reap(ReapFilter(orphans=True)) == []
    await other.aclose()
    assert await backend.reap(ReapFilter(orphans=True)) == []
    assert caplog.text.count("could not be removed") == 1
    assert isinstance(backend, HasLeftovers)
    (line,) = await backend.leftovers()
    assert f"; `hermes-exec reap --orphans -b {name}` tries it again: " in line
    assert KEPT in line
    assert directory.path.name in line
    chattr("-i", kept)
    assert await backend.reap(ReapFilter(orphans=True)) == []
    assert kept.exists()
    (reaped,) = await backend.reap(ReapFilter(orphans=True, retry=True))
    assert reaped.reason == "it could not be removed before"
    assert left(tmp_path) == []
    assert await backend.leftovers() == []
    await backend.aclose()


@pytest.mark.whole
async def test_ps_and_doctor_report_what_a_driver_that_lives_could_not_remove(
    stubborn: Callable[[str], SandboxDirectory], tmp_path: Path
) -> None:
    directory = stubborn(PREFIX)
    directory.remove()
    for command in ("ps", "doctor"):
        assert KEPT in await _command(command, tmp_path)
    (directory.path / LEFT_FILE).write_text("[")  # cut, as by a full disk
    assert "it could not be removed" in await _command("ps", tmp_path)
    chattr("-i", directory.path / "base" / "slots" / "kept")
    assert "could not be removed before" in await _command("reap", tmp_path, "--orphans")
    assert left(tmp_path) == []


async def _command(name: str, base_dir: Path, *words: str) -> str:
    argv = [*PROGRAM, name, *words, "-b", "local", "-o", f"base_dir={base_dir}"]
    done = await anyio.run_process(argv, check=False, env={**os.environ, "COLUMNS": "400"})
    return " ".join((done.stdout + done.stderr).decode().split())
