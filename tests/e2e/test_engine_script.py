"""`.ci/engine`, which installs Docker as root: it says so first, and can be declined. Here apt-get is a fake that
fails.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[2] / ".ci"
DECLINED = "engine: no Docker: no daemon runs, and HERMES_NO_ENGINE is set; start Docker or unset it\n"


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkout on a machine of root's that has no Docker, only the tools that the script uses."""
    for name in ("engine", "step"):
        program(tmp_path / ".ci" / name, (CI / name).read_text().replace("/var/", f"{tmp_path}/"))
    (tmp_path / "log").mkdir()
    program(tmp_path / ".venv/bin/python", "exit 1")
    program(tmp_path / "bin/id", "echo 0")
    program(tmp_path / "bin/apt-get", f"cat {tmp_path}/said >>{tmp_path}/seen; exit 100")
    for tool in ("cat", "date", "dirname", "sh", "sleep"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / "bin" / tool).symlink_to(found)
    return tmp_path


def engine(bare: Path, *arguments: str, **env: str) -> tuple[int, str]:
    with (bare / "said").open("w") as said:
        script = [str(bare / ".ci/engine"), *arguments]
        done = subprocess.run(script, env={"PATH": str(bare / "bin"), **env}, stderr=said, timeout=60, check=False)
    return done.returncode, (bare / "said").read_text()


def test_installation_is_announced_before_it_is_done(bare: Path) -> None:
    code, said = engine(bare)
    assert code == 1
    assert "Docker will be installed" in (bare / "seen").read_text()
    assert "HERMES_NO_ENGINE=1" in said.splitlines()[0]
    assert "apt-get install docker.io failed" in said.splitlines()[-1]


def test_announcement_alone_does_nothing(bare: Path) -> None:
    code, said = engine(bare, "announce")
    assert (code, "Docker will be installed" in said) == (0, True)
    assert not (bare / "seen").exists()


def test_engine_can_be_declined(bare: Path) -> None:
    assert engine(bare, HERMES_NO_ENGINE="1") == (1, DECLINED)
    assert engine(bare, "announce", HERMES_NO_ENGINE="1") == (0, "")
    assert not (bare / "seen").exists()
