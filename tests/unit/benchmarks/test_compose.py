"""The script that builds Docker Compose for comparisons."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_failed_download_copies_nothing(tmp_path: Path) -> None:
    caches, temporary = tmp_path / "home", tmp_path / "temporary"
    temporary.mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(caches),
        "TMPDIR": str(temporary),
        "GOPROXY": "off",
    }
    done = subprocess.run([ROOT / ".ci" / "compose"], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be downloaded" in done.stderr
    assert "GOPROXY=off" in done.stderr
    assert list(temporary.iterdir()) == []
