"""Another ordinary user of this host: one that no tenant and no driver is. Takes root."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

OTHER = 54321
"""A user id that nobody else has."""
SECRET = "of root alone"


def as_other(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program as the other user."""
    words = [str(word) for word in argv]
    return subprocess.run(
        ["/bin/sh", "-c", 'exec "$@"', "sh", *words],
        user=OTHER, group=OTHER, extra_groups=[], cwd="/", stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@contextmanager
def secret_file() -> Iterator[Path]:
    """A file that only root may read, in a directory that everybody may pass."""
    path = Path("/tmp") / f"secret-{secrets.token_hex(6)}"
    path.touch(0o600)
    path.write_text(SECRET)
    try:
        assert as_other("cat", path).returncode != 0
        yield path
    finally:
        path.unlink()


def found_below(name: str, *directories: str | Path) -> list[str]:
    """The paths on this host of what has a name."""
    done = subprocess.run(["find", *directories, "-name", name], capture_output=True, text=True, check=False)
    return done.stdout.split()


def reached(paths: Sequence[str]) -> list[str]:
    """Which of these programs, that tenants have made set-uid, give the other user what only root may read."""
    with secret_file() as secret:
        return [path for path in paths if SECRET in as_other(path, secret).stdout]


def require_root() -> None:
    """Skip the test unless this is root."""
    if os.geteuid() != 0:
        pytest.skip("it takes root to be another user")
