"""Runs a module of ours as an ordinary user, also when the tests run as root."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
USER = "nobody"


@contextmanager
def account() -> Iterator[str]:
    """An ordinary user of this machine who may log in by key, for as long as the block lasts; takes root."""
    name = f"hermes{os.getpid()}"
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", "--password", "*", name], check=True)
    try:
        yield name
    finally:
        subprocess.run(["userdel", "--remove", name], check=True, capture_output=True)


def interpreter(env: dict[str, str], user: str) -> str:
    """A Python of this version that the user can run with our packages; the test is skipped where there is none."""
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


def run_as_ordinary_user(module: str, *words: str, user: str = USER, timeout_s: float = 580) -> bytes:
    """What a module prints that is run with these words as an ordinary user, in a home that is removed afterwards."""
    entry = pwd.getpwnam(user)
    # The user must reach it, and pytest's directories are closed.
    home = Path(tempfile.mkdtemp(prefix="hermes-ordinary-", dir="/tmp"))
    os.chown(home, entry.pw_uid, entry.pw_gid)
    paths = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
    env = {"HOME": str(home), "TMPDIR": str(home), "PATH": os.defpath, "PYTHONPATH": ":".join(paths), "LANG": "C.UTF-8"}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    try:
        done = subprocess.run(
            [interpreter(env, user), "-m", module, *words],
            user=user,
            group=entry.pw_gid,
            extra_groups=[],
            env=env,
            cwd=home,
            stdout=subprocess.PIPE,
            timeout=timeout_s,
            check=True,
        )
    finally:
        subprocess.run(["rm", "-rf", str(home)], check=True)
    return done.stdout
