"""The directory on this host in which the pools of a user find each other."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def pool_directory(uid: int | None = None) -> Path:
    """Return the path of a user's directory (default: this user's), which may not exist."""
    return Path(tempfile.gettempdir()) / f"hermes-exec.{os.geteuid() if uid is None else uid}"


def make_pool_directory() -> Path:
    """Return the directory of this user, and create it if it is missing.

    Raises:
        OSError: If it cannot be created, or others have access to it.
    """
    path = pool_directory()
    with suppress(FileExistsError):
        path.mkdir(0o700)
    if not is_private(path, os.geteuid()):
        raise PermissionError(errno.EPERM, "its directory is not this user's alone")
    return path


def is_private(path: Path, uid: int) -> bool:
    """Check whether a path is a directory that only this user may access."""
    try:
        facts = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == uid and not facts.st_mode & 0o077
